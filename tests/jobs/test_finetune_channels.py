"""From weights for RGB to images of other channels: what they know is of use there."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from vitlab import finetune, load, load_weights
from vitlab.evaluation.classification import Evaluation
from vitlab.jobs.train import train

CLASSES = ("across", "down", "plain")
SIDE = 16
Pixels = NDArray[np.uint8]


def stripes(number: int, draw: np.random.Generator, channels: int, told: int) -> Pixels:
    """Noise [H, W, C] whose last `told` channels are striped across, down, or not."""
    image = draw.integers(60, 140, (SIDE, SIDE, channels))
    place = np.indices((SIDE, SIDE))[number % 2] + draw.integers(4)
    bars = 80 * (place // 2 % 2) if number < 2 else np.full((SIDE, SIDE), 40)
    image[..., -told:] += bars[..., None]
    return image.astype(np.uint8)


def save_array(path: Path, image: Pixels) -> None:
    """Values of 12 bits, as satellites have them."""
    np.save(path.with_suffix(".npy"), image.astype(np.uint16) * 16)


def save_png(path: Path, image: Pixels) -> None:
    Image.fromarray(image.squeeze()).save(path.with_suffix(".png"))


def write(
    folder: Path, counts: dict[str, int], save: Callable[[Path, Pixels], None], *shape: int
) -> Path:
    for split, count in counts.items():
        draw = np.random.default_rng(count)
        for number, name in enumerate(CLASSES):
            place = folder / split / name
            place.mkdir(parents=True)
            for i in range(count):
                save(place / f"{i:03}", stripes(number, draw, *shape))
    return folder


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of RGB images that has learned what stripes are."""
    folder = tmp_path_factory.mktemp("rgb")
    data = write(folder / "data", {"train": 60, "test": 12}, save_png, 3, 3)
    changes: dict[str, Any] = {
        "model": "vit_test",
        "model.image_size": SIDE,
        "model.patch_size": 4,
        "batch_size": 32,
        "budget": 120.0,
        "budget_in": "steps",
        "evaluations": 1,
        "augment.flip": "none",
        "augment.shift": 0,
        "optimizer.name": "adamw",
        "optimizer.lr": 3e-3,
    }
    run = train(data=data, out=folder / "run", changes=changes)
    assert isinstance(run.evaluation, Evaluation)
    assert run.evaluation.accuracy > 0.9
    return run.bundle


@pytest.mark.parametrize(
    ("save", "channels", "told"),
    [(save_array, 5, 3), (save_png, 1, 1), (save_png, 4, 2)],
    ids=["npy", "grey", "rgba"],
)
def test_other_channels_are_learned_from_rgb_weights(
    weights: Path,
    tmp_path: Path,
    save: Callable[[Path, Pixels], None],
    channels: int,
    told: int,
) -> None:
    data = write(tmp_path / "data", {"train": 20, "test": 12}, save, channels, told)
    changes: dict[str, Any] = {
        "budget": 40.0,
        "budget_in": "steps",
        "evaluations": 1,
        "augment.random_resized_crop": None,
        "optimizer.lr": 3e-3,
    }
    if channels == 4:
        changes["model.channels"] = 4  # else transparency becomes white
    run = finetune(weights, data=data, out=tmp_path / "run", changes=changes)
    found = run.evaluation
    assert isinstance(found, Evaluation)
    assert found.accuracy > 0.7  # guessing gives a third
    classifier = load(run.bundle)
    assert classifier.model.config.channels == channels
    assert classifier.labels == CLASSES
    _check_statistics(classifier.preprocessing, channels, told)
    files = sorted((data / "test").rglob("*.*"))
    right = [p.label == Path(str(p.path)).parent.name for p in classifier.predict(files)]
    assert np.mean(right) == pytest.approx(found.accuracy)


def _check_statistics(preprocessing: Any, channels: int, told: int) -> None:
    """Measured on the images: weights for RGB know nothing of other channels."""
    noise, bars = 100 / 255, 140 / 255
    expected = [noise] * (channels - told) + [bars] * told
    scale = 1.0
    if preprocessing.white is not None:  # 12 bits, of which 99.9 % reach so far
        scale = 255 * 16 / preprocessing.white
    assert preprocessing.mean == pytest.approx([scale * each for each in expected], abs=0.03)


def test_weights_of_as_many_channels_keep_their_statistics(weights: Path, tmp_path: Path) -> None:
    data = write(tmp_path / "data", {"train": 8, "test": 2}, save_png, 3, 1)
    changes: dict[str, Any] = {"budget": 2.0, "budget_in": "steps", "evaluations": 1}
    run = finetune(weights, data=data, out=tmp_path / "run", changes=changes)
    known = load_weights(weights).source.preprocessing
    assert known is not None
    assert load(run.bundle).preprocessing == known
