"""Runs on folders of images, resumed: quickly, exactly, and only on the same images."""

import json
import shutil
from pathlib import Path

import pytest

from runs import CHANGES, make_folder, same, train_until
from vitlab.data import split
from vitlab.errors import ConfigError, DataError
from vitlab.jobs.evaluate import evaluate
from vitlab.jobs.train import train

SETTINGS = CHANGES | {"budget": 6.0, "checkpoint_every": 2, "batch_size": 8, "evaluations": 2}


@pytest.fixture
def images(tmp_path: Path) -> Path:
    return Path(make_folder(tmp_path / "images", each=15))


@pytest.fixture
def run(tmp_path: Path, images: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run stopped after four steps, begun with a path that is relative."""
    monkeypatch.chdir(tmp_path)
    train_until(4, data="images", out=tmp_path / "run", changes=SETTINGS)
    return tmp_path / "run"


def test_files_are_not_looked_at_again(
    run: Path, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = train(data=images, out=tmp_path / "whole", changes=SETTINGS).folder
    found = json.loads((run / "survey.json").read_text())
    assert found == json.loads((whole / "survey.json").read_text())
    assert (found["files"], sorted(found["broken"])) == (
        32,
        ["left/broken.jpg", "right/broken.jpg"],
    )
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    monkeypatch.setattr(split, "compare_files", None)
    train(out=run, resume=True)
    assert same(run, whole)
    found = evaluate(run, images)
    assert (found.evaluation.images, len(found.broken)) == (6, 2)


def test_a_lost_survey_is_made_again(run: Path) -> None:
    content = (run / "survey.json").read_bytes()
    (run / "survey.json").unlink()
    train(out=run, resume=True)
    assert (run / "survey.json").read_bytes() == content


def test_a_changed_folder_is_refused(run: Path, images: Path) -> None:
    shutil.copy(images / "left" / "1.jpg", images / "right" / "new.jpg")
    with pytest.raises(DataError, match="changed since the run began: 33 files instead of 32"):
        train(out=run, resume=True)
    (images / "right" / "1.jpg").unlink()
    with pytest.raises(DataError, match="32 files as before, but with other names or sizes"):
        train(out=run, resume=True)


def test_a_model_is_not_judged_by_images_it_may_have_learned(run: Path, images: Path) -> None:
    """More files make another split; in it, trained images would stand among the test images."""
    train(out=run, resume=True)
    shutil.copy(images / "left" / "1.jpg", images / "right" / "new.jpg")
    with pytest.raises(DataError, match="changed since the run began"):
        evaluate(run, images)


def test_a_damaged_survey_is_one_line(run: Path) -> None:
    (run / "survey.json").write_text('{"files": ')
    with pytest.raises(ConfigError, match=r"survey\.json: damaged .*; remove it to look again"):
        train(out=run, resume=True)
