"""Datasets of the library `datasets` in folders: the same images, and no network."""

from pathlib import Path
from typing import Any

import pytest
import torch

from data.shard_files import CLASSES, rows_of, train_set, write_folder, write_parquet
from vitlab.data.datasets import absolute, open_data
from vitlab.errors import DataError

datasets = pytest.importorskip("datasets")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")


@pytest.fixture(autouse=True)
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No network, and a cache of its own."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf")
    monkeypatch.setattr("socket.socket.connect", _refuse)


ASKED: list[object] = []
"""Addresses that were connected to."""


def _refuse(_: object, address: object) -> None:
    ASKED.append(address)
    raise OSError("no network in this test")


def dataset(root: Path) -> Any:
    features = datasets.Features(
        image=datasets.Image(), label=datasets.ClassLabel(names=sorted(CLASSES))
    )
    rows = rows_of(root)
    return datasets.Dataset.from_list(rows[::-1], features=features)


def test_a_stored_dataset_is_the_folder(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "folder")
    dataset(folder).save_to_disk(tmp_path / "stored")
    files, stored = open_data(folder), open_data(f"hf:{tmp_path / 'stored'}")
    train, test = files.open_train(), files.open_test
    mine = stored.open_train()
    assert stored.labels == files.labels
    assert test is not None
    assert stored.open_test is not None
    assert torch.equal(train.labels, mine.labels)
    assert torch.equal(test().labels, stored.open_test().labels)
    for number in range(len(train)):
        assert train.source(number).read_bytes() == mine.source(number).read()
    assert absolute(f"hf:{tmp_path / 'stored'}") == f"hf:{tmp_path / 'stored'}"


def test_splits_and_columns(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "folder")
    whole = dataset(folder).rename_column("label", "kind")
    parts = datasets.DatasetDict(
        train=whole.select(range(30)).flatten_indices(),
        validation=whole.select(range(30, 44)).flatten_indices(),
        extra=whole,
    )
    parts.save_to_disk(tmp_path / "stored")
    source = open_data(f"hf:{tmp_path / 'stored'}#label=kind")
    assert source.open_test is not None
    assert (len(source.open_train()), len(source.open_test())) == (30, 14)
    assert "Files of extra are not used" in source.notes


def test_a_folder_that_the_library_reads(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "folder")
    tables = write_parquet(folder, tmp_path / "tables")
    source, other = open_data(f"hf:{tables}"), train_set(tables)
    assert source.open_test is not None
    found = torch.cat([source.open_train().labels, source.open_test().labels])
    assert found.bincount().tolist() == other.labels.bincount().tolist()


def test_mistakes_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"hf:nobody/nothing: .*; --download fetches it") as caught:
        open_data("hf:nobody/nothing")
    assert ASKED == []
    assert "\n" not in str(caught.value)
    folder = write_folder(tmp_path / "folder")
    datasets.DatasetDict(test=dataset(folder)).save_to_disk(tmp_path / "stored")
    with pytest.raises(DataError, match="splits test; valid: a dataset with a split 'train'"):
        open_data(f"hf:{tmp_path / 'stored'}")
