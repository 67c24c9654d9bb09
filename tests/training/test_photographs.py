"""The default recipe does not shrink photographs to 32 pixels."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from vitlab.data.images import FileSet
from vitlab.training.recipes import photographs
from vitlab.training.recipes.from_scratch import default
from vitlab.training.recipes.photographs import photograph_size

CONFIG = replace(default(), budget=10.0, budget_in="epochs")


def files(folder: Path, count: int, side: int) -> FileSet:
    """A set in which only the sizes of a few files are looked at."""
    for number in range(3):
        Image.new("RGB", (side + 37, side)).save(folder / f"{number}.png")
    (folder / "broken.png").write_bytes(b"no image")
    paths = [folder / name for name in ("0.png", "1.png", "2.png", "broken.png")]
    labels = torch.zeros(count, dtype=torch.int64)
    return FileSet(paths=tuple(paths[i % 4] for i in range(count)), labels=labels)


@pytest.mark.parametrize(
    ("count", "side", "expected"),
    [(100, 300, 128), (100, 101, 96), (100, 48, 48), (100, 47, None), (50_000, 300, 32)],
)
def test_size_follows_the_images_and_their_number(
    tmp_path: Path, count: int, side: int, expected: int | None
) -> None:
    size, note = photograph_size(files(tmp_path, count, side), CONFIG, {})
    assert size == expected
    if expected is None:
        assert note is None
    else:
        assert f"are resized to {expected} x {expected}" in str(note)
        assert "vitlab finetune" in str(note)


def test_minutes_and_steps_limit_it_and_choices_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(photographs, "cores", lambda: 2)
    images = files(tmp_path, 2000, 500)
    sizes = [
        photograph_size(images, replace(CONFIG, budget=minutes, budget_in="minutes"), {})[0]
        for minutes in (1.0, 10.0, 40.0)
    ]
    assert sizes == sorted(sizes, key=lambda size: size or 0)
    assert sizes[0] == 32
    assert sizes[-1] == 128
    assert photograph_size(images, replace(CONFIG, budget=5.0, budget_in="steps"), {})[0] == 128
    for chosen in ({"model.image_size": 64}, {"model": "vit_test"}):
        assert photograph_size(images, CONFIG, chosen) == (None, None)
    np.save(tmp_path / "x.npy", np.zeros((64, 64), np.uint8))
    arrays = FileSet(paths=(tmp_path / "x.npy",), labels=torch.zeros(1, dtype=torch.int64))
    assert photograph_size(arrays, CONFIG, {}) == (None, None)
