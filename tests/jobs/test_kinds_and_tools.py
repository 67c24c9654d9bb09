"""Unusual files and tasks with what is about runs: surveys, resuming, sheets, checks, few shots."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from runs import same, train_until
from vitlab.classify.classifier import load
from vitlab.classify.predictor import Prediction
from vitlab.data import split
from vitlab.data.check.check import check_folder, write_check_sheet
from vitlab.data.images import FileSet
from vitlab.data.split import survey_files, surveyed_groups
from vitlab.errors import DataError
from vitlab.jobs.evaluate import evaluate
from vitlab.jobs.fewshot import fewshot
from vitlab.jobs.predict import predict
from vitlab.jobs.train import train

SMALL: dict[str, Any] = {
    "model": "vit_test",
    "model.image_size": 8,
    "model.patch_size": 4,
    "batch_size": 8,
    "budget": 4.0,
    "budget_in": "steps",
    "evaluations": 2,
    "checkpoint_every": 1,
}


def bands(number: int, channels: int = 5) -> np.ndarray:
    """Smooth pictures of 12 bits, each another one."""
    down, across = np.mgrid[:16, :16] / 16
    waves = [np.sin(9 * down * (number % 7) + across * number + c) for c in range(channels)]
    return (2000 * (1 + np.stack(waves, axis=-1))).astype(np.uint16)


@pytest.fixture
def arrays(tmp_path: Path) -> Path:
    """Two classes of arrays, and one that cannot be read."""
    for number in range(30):
        folder = tmp_path / "arrays" / ("left" if number % 2 else "right")
        folder.mkdir(parents=True, exist_ok=True)
        np.save(folder / f"{number}.npy", bands(number))
    (tmp_path / "arrays" / "left" / "broken.npy").write_bytes(b"not an array")
    return tmp_path / "arrays"


def test_a_run_on_arrays_resumes_on_the_same_files_alone(
    arrays: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = SMALL | {"max_broken": 0.1}
    whole = train(data=arrays, out=tmp_path / "whole", changes=changes)
    train_until(2, data=arrays, out=tmp_path / "run", changes=changes)
    added = shutil.copy(arrays / "left" / "1.npy", arrays / "left" / "new.npy")
    with pytest.raises(DataError, match="changed since the run began: 32 files instead of 31"):
        train(out=tmp_path / "run", resume=True)
    Path(added).unlink()
    monkeypatch.setattr(split, "compare_files", None)  # nothing is looked at again
    train(out=tmp_path / "run", resume=True)
    assert same(tmp_path / "run", whole.folder)
    found = evaluate(tmp_path / "run", arrays)
    assert list(map(Path, found.broken)) == [arrays / "left" / "broken.npy"]


def test_files_of_more_than_8_bits_are_read_and_told_apart(tmp_path: Path) -> None:
    files = []
    for number in range(1, 7):
        grey = bands(number, 1)[..., 0]
        Image.fromarray(grey.astype(np.float32) / 4000).save(tmp_path / f"{number}.tif")
        Image.fromarray(grey // 8).save(tmp_path / f"{number}.png")
        np.save(tmp_path / f"{number}.npy", bands(number + 10))
        files += [tmp_path / f"{number}.{ending}" for ending in ("tif", "png", "npy")]
    Image.fromarray(np.zeros((16, 16), np.float32)).save(tmp_path / "black.tif")
    files.append(tmp_path / "black.tif")
    data = survey_files(
        FileSet(paths=tuple(files), labels=torch.zeros(len(files), dtype=torch.int64))
    )
    assert data.survey is not None
    assert data.survey.broken == {}
    groups = surveyed_groups(data).tolist()
    # The same picture as TIFF and as a much darker PNG is one; all others differ.
    assert all(groups[3 * n] == groups[3 * n + 1] for n in range(6))
    assert len(set(groups)) == 6 + 6 + 1


def test_a_check_knows_arrays(arrays: Path, tmp_path: Path) -> None:
    found = check_folder(arrays)
    assert found.images == 30
    assert found.height is not None
    assert found.height.most == 16
    named = {each.name: each for each in found.findings}
    assert [item.paths for item in named["unreadable"].items] == [("left/broken.npy",)]
    assert len(named["deep"].items) == 30
    write_check_sheet(tmp_path / "sheet.png", found)
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.width > 500


@pytest.mark.parametrize(
    ("header", "cells", "told"),
    [("value", ["1.5", "40"], "value "), ("labels", ["a;b", "a"], "a ")],
)
def test_values_and_labels_are_predicted_resumed_and_drawn(
    tmp_path: Path, header: str, cells: list[str], told: str
) -> None:
    rows = [f"path,{header}"]
    for number in range(30):
        picture = bands(number, 3) // 16
        Image.fromarray(picture.astype(np.uint8)).save(tmp_path / f"{number}.png")
        rows.append(f"{number}.png,{cells[number % 2]}")
    (tmp_path / "table.csv").write_text("\n".join(rows))
    run = train(data=tmp_path / "table.csv", out=tmp_path / "run", changes=SMALL)
    found: list[Prediction] = []
    written, sheet = tmp_path / "out.csv", tmp_path / "sheet.png"
    for _ in range(2):
        done = predict(
            run.folder,
            [tmp_path / f"{number}.png" for number in range(30)],
            output=written,
            contact_sheet=sheet,
            each=found.append,
        )
    assert (done.images, done.failed, done.done_before, len(found)) == (30, 0, 30, 30)
    assert found[0].answers[0].startswith(told)
    assert (found[0].value is None) == (header == "labels")
    assert sheet.stat().st_size > 10_000
    assert load(run.folder).predictor().task == run.evaluation.task
    with pytest.raises(DataError, match=r"table is .* data; valid: one class for each image"):
        fewshot(run.folder, tmp_path / "table.csv")
