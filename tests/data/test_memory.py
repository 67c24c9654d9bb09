"""Images that a program holds: every kind gives the same source, and wrong ones one clear line."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, TensorDataset

import vitlab
from vitlab.data.datasets import open_data
from vitlab.data.images import ArraySet, FileSet
from vitlab.errors import DataError
from vitlab.jobs.training_run import Watcher

N, H, W = 30, 16, 24
SHORT: dict[str, Any] = {"budget": 2, "budget_in": "steps", "batch_size": 8, "model": "vit_test"}


@pytest.fixture
def arrays() -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(random.randrange(1000))
    return draw.integers(0, 256, (N, H, W, 3), np.uint8), np.arange(N) % 3


class Named(Dataset[Any]):
    """A dataset as torchvision has them: PIL images, and names of the classes."""

    classes = ("ant", "bee", "cat")

    def __init__(self, images: np.ndarray, labels: np.ndarray) -> None:
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        return Image.fromarray(self.images[index]), int(self.labels[index])


def kinds(images: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
    floats = torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255
    return {
        "arrays": (images, labels),
        "tensors": (floats, torch.from_numpy(labels)),
        "dataset": TensorDataset(floats, torch.from_numpy(labels)),
        "named": Named(images, labels),
        "pairs": [
            (Image.fromarray(image), int(label))
            for image, label in zip(images, labels, strict=True)
        ],
        "names": [(image, "xyz"[label]) for image, label in zip(images, labels, strict=True)],
        "parts": {"train": (images, labels), "labels": ["a", "b", "c"]},
    }


@pytest.mark.parametrize(
    "kind", ["arrays", "tensors", "dataset", "named", "pairs", "names", "parts"]
)
def test_every_kind_gives_the_same_images(kind: str, arrays: tuple[Any, Any]) -> None:
    source = open_data(kinds(*arrays)[kind])
    assert source.open_test is not None
    train, test = source.open_train(), source.open_test()
    assert isinstance(train, ArraySet)
    wanted = torch.from_numpy(arrays[0]).permute(0, 3, 1, 2)
    found = torch.cat([train.images, test.images])
    assert sorted(map(hash, map(bytes, found.flatten(1).numpy()))) == sorted(
        map(hash, map(bytes, wanted.contiguous().flatten(1).numpy()))
    )
    assert source.divided
    assert source.image_size == (H, W)
    names = {"named": Named.classes, "names": tuple("xyz"), "parts": tuple("abc")}
    assert source.labels == names.get(kind, ("0", "1", "2"))
    assert source.mean == pytest.approx((wanted.double() / 255).mean((0, 2, 3)).tolist())


def test_a_test_part_is_kept_apart_and_sizes_may_differ(arrays: tuple[Any, Any]) -> None:
    images, labels = arrays
    cut = [image[: 5 + n % 4] for n, image in enumerate(images)]
    source = open_data(
        {"train": list(zip(cut, labels, strict=True)), "test": (images[:6], labels[:6])}
    )
    assert source.open_test is not None
    train, test = source.open_train(), source.open_test()
    assert isinstance(train, FileSet)
    assert len(train) == N
    assert isinstance(test, ArraySet)
    assert np.array_equal(np.asarray(Image.open(train.paths[7])), cut[7])
    assert source.image_size is None


def test_grey_and_other_labels() -> None:
    grey = np.zeros((4, 5, 7), np.uint8)
    assert open_data((grey, [0, 1, 0, 1])).channels == 1
    assert open_data((grey, np.eye(4, 2, dtype=bool))).task == "multi-label"
    assert open_data((grey, np.linspace(0, 1, 4))).task == "regression"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ((torch.randn(4, 3, 5, 5) - 9, [0, 1, 0, 1]), "valid: 8-bit pixels, or floats from 0 to 1"),
        ((np.zeros((4, 5, 5, 3), np.uint8), [0, 1]), "4 images with 2 labels"),
        ((np.zeros((2, 3, 90, 90), np.uint8), [0, 1]), "90 channels; valid: an array"),
        ([1, 2], "item 0 is a int; valid: pairs"),
        ([], "no images"),
        ({"train": [], "tset": []}, "tset; valid keys: train, test, labels"),
        ((np.zeros((2, 5, 5), np.uint8), [0, -1]), "label -1; valid: 0 to 0"),
        ([(np.zeros((5, 5), np.uint8), None)], "labels of shape"),
    ],
)
def test_what_is_no_data_is_one_line(data: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        open_data(data)


def test_train_resume_and_evaluate(arrays: tuple[Any, Any], tmp_path: Path) -> None:
    data = Named(*arrays)
    notes: list[str] = []
    watcher = Watcher(note=notes.append)
    out = tmp_path / "run"
    vitlab.train(data=data, out=out, changes=SHORT, watcher=watcher)
    found = vitlab.evaluate(out, data)
    assert (len(found.outcome.labels), found.split) == (N, "all")
    assert found.classifier.labels == Named.classes
    numbered = vitlab.evaluate(out, arrays)  # numbers are those of the model's classes
    assert torch.equal(numbered.outcome.logits, found.outcome.logits)
    assert torch.equal(numbered.outcome.labels, found.outcome.labels)
    with pytest.raises(DataError, match="these images were in memory"):
        vitlab.train(out=out, resume=True)
    vitlab.train(data=data, out=out, resume=True)


def test_finetune_takes_images_of_different_sizes(arrays: tuple[Any, Any], tmp_path: Path) -> None:
    pairs = [
        (image[: 8 + n % 3], f"k{label}")
        for n, (image, label) in enumerate(zip(*arrays, strict=True))
    ]
    changes = {key: value for key, value in SHORT.items() if key != "model"}
    run = vitlab.finetune("cifar10", data=pairs, out=tmp_path / "run", changes=changes)
    assert vitlab.load(tmp_path / "run").labels == ("k0", "k1", "k2")
    assert run is not None
