"""The data that is part of the package: what is in it, and that it needs nothing else."""

import hashlib
import socket
from pathlib import Path

import pytest
import torch

from data.splits import splits
from vitlab.data.datasets import open_data
from vitlab.data.duplicates import duplicate_groups
from vitlab.data.images import ArraySet
from vitlab.data.sources.sample import read_sheet, write_sheet
from vitlab.registry import DATASETS

NAMES = "airplane automobile bird cat deer dog frog horse ship truck"
LABELS = tuple(NAMES.split())


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        pytest.fail("the network was used")

    monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.mark.parametrize("name", ["sample", "digits"])
def test_statistics_are_those_of_the_training_images(name: str, home: Path) -> None:
    source = open_data(name)
    train, test = splits(source)
    assert source.image_size is not None
    scaled = train.images.double() / 255
    mean, std = scaled.mean(dim=(0, 2, 3)), scaled.std(dim=(0, 2, 3), correction=0)
    assert [round(value, 5) for value in mean.tolist()] == list(source.mean)
    assert [round(value, 5) for value in std.tolist()] == list(source.std)
    for data in (train, test):
        assert data.images.shape[1:] == (source.channels, *source.image_size)
        assert data.images.is_contiguous()
    assert DATASETS[name].images == (len(train), len(test))
    assert not home.exists()


def test_the_sample_is_a_few_hundred_of_each_class() -> None:
    source = open_data("sample")
    train, test = splits(source)
    assert train.labels.bincount().tolist() == [300] * 10
    assert test.labels.bincount().tolist() == [100] * 10
    assert source.labels == LABELS


@pytest.mark.parametrize(
    ("split", "digest"),
    [
        (0, "e702f1412accc273892dab2a1965d8a3d0cff5d84c1c6de86b5f1f7b10ea95a0"),
        (1, "b6a46e35837df3f0390836d8a0a0ecd4b1e63d8ac91fdcd9eef9633f6c97f0e4"),
    ],
)
def test_the_sample_is_what_it_was(split: int, digest: str) -> None:
    images = splits(open_data("sample"))[split].images
    assert hashlib.sha256(images.numpy().tobytes()).hexdigest() == digest


def test_nothing_in_the_sample_is_there_twice() -> None:
    train, test = splits(open_data("sample"))
    both = ArraySet(
        images=torch.cat([train.images, test.images]), labels=torch.cat([train.labels, test.labels])
    )
    assert duplicate_groups(both).unique().numel() == len(both)


def test_the_sample_looks_like_its_labels() -> None:
    """Ships and planes are on blue, frogs and deer are not: enough to catch shuffled labels."""
    train, _ = splits(open_data("sample"))
    blueness = (train.images[:, 2].float() - train.images[:, 0].float()).mean(dim=(1, 2))
    by_class = {
        name: float(blueness[train.labels == label].mean()) for label, name in enumerate(LABELS)
    }
    assert {name for name, value in by_class.items() if value > 0} == {"airplane", "ship"}


def test_a_sheet_is_read_as_it_was_written(tmp_path: Path) -> None:
    images = torch.randint(256, (50, 3, 32, 32)).byte()
    write_sheet(images, tmp_path / "sheet.webp")
    assert torch.equal(read_sheet(tmp_path / "sheet.webp"), images)


def test_the_digits_are_scikit_learns() -> None:
    train, test = splits(open_data("digits"))
    # The first image of sklearn.datasets.load_digits(), with values from 0 to 16.
    first = [
        [0, 0, 5, 13, 9, 1, 0, 0],
        [0, 0, 13, 15, 10, 15, 5, 0],
        [0, 3, 15, 2, 0, 11, 8, 0],
        [0, 4, 12, 0, 0, 8, 8, 0],
        [0, 5, 8, 0, 0, 9, 8, 0],
        [0, 4, 11, 0, 1, 12, 7, 0],
        [0, 2, 14, 5, 10, 12, 0, 0],
        [0, 0, 6, 13, 10, 0, 0, 0],
    ]
    assert (train.images[0, 0].double() * 16 / 255).round().long().tolist() == first
    assert train.labels[:10].tolist() == list(range(10))
    assert len(train) + len(test) == 1797
    together = torch.cat([train.labels, test.labels]).bincount()
    assert together.tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert (int(train.images.min()), int(train.images.max())) == (0, 255)
