"""Shards in object stores: copies, their bound, and stores that fail, stall or truncate."""

import logging
import os
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch

from data.shard_files import CLASSES, train_set, write_folder, write_parquet
from data.store_server import Faults, store_of
from vitlab.data.augment.config import AugmentConfig
from vitlab.data.check.check import check_folder
from vitlab.data.datasets import open_data
from vitlab.data.images import IndexedSet, survey_of
from vitlab.data.loader import FileLoader
from vitlab.data.shards import index as index_module
from vitlab.data.shards.cache import Cache, cache_limit
from vitlab.data.shards.layout import find_layout, write_index
from vitlab.data.shards.pack import pack
from vitlab.data.shards.store import Store, StoreError
from vitlab.errors import ConfigError, DataError, InputError, VitlabError
from vitlab.images.preprocessing import HALF, Preprocessing
from vitlab.jobs.parts.predictions import merge_predictions, predict_parts

PREPARED = Preprocessing(size=(24, 20), mean=HALF, std=HALF)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five shards, and the same in two Parquet files."""
    root = tmp_path_factory.mktemp("stores")
    folder = write_folder(root / "folder")
    pack(folder, root / "shards", images=9)
    shutil.rmtree(root / "shards" / "vitlab.index")
    write_parquet(folder, root / "tables")
    return root


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITLAB_STORE_TIMEOUT", "0.4")
    monkeypatch.setenv("VITLAB_STORE_ATTEMPTS", "3")
    monkeypatch.setattr("vitlab.data.shards.store.PAUSE", 0.01)


@pytest.fixture
def server(shards: Path) -> Iterator[Faults]:
    with store_of(shards) as faults:
        yield faults


def indexed(spec: str) -> IndexedSet:
    layout = find_layout(spec)
    assert layout is not None
    write_index(layout)
    return train_set(spec)


def loader(data: IndexedSet, **changes: Any) -> FileLoader:
    settings: dict[str, Any] = {
        "batch_size": 5,
        "seed": 0,
        "augment": AugmentConfig(),
        "preprocessing": PREPARED,
        "classes": len(CLASSES),
    }
    return FileLoader(data, **(settings | changes))


PATTERN = "/shards/{00000..00004}.tar"


def test_shards_over_http_are_those_on_the_disk(server: Faults, shards: Path, home: Path) -> None:
    address = server.address + PATTERN
    with pytest.raises(DataError, match=r"has no index; vitlab data index 'http.*' writes it"):
        open_data(address)
    data, local = indexed(address), train_set(shards / "shards")
    assert data.index.folder.is_relative_to(home / "indexes")
    assert [data.source(n).read() for n in range(44)] == [local.source(n).read() for n in range(44)]
    assert torch.equal(data.labels, local.labels)
    assert {str(data.name(n)) for n in range(44)} == {
        str(local.name(n).relative_to(shards / "shards")) for n in range(44)
    }
    requests = len(server.asked)
    assert open_data(address).name == "{00000..00004}.tar"
    one, two = loader(data, workers=1, window=2), loader(local, window=2)
    for step in (0, 9):
        assert torch.equal(one.batch(step).images, two.batch(step).images)
    one.close()
    assert len(server.asked) == requests + 1  # for classes.txt: copies are used again


def test_tables_over_http_are_read_by_the_columns_that_are_needed(
    server: Faults, shards: Path
) -> None:
    names = "train-{00000..00001}-of-00002.parquet"
    data, local = indexed(f"{server.address}/tables/{names}"), train_set(shards / "tables")
    assert [data.source(n).read() for n in range(44)] == [local.source(n).read() for n in range(44)]


def test_a_store_in_memory(shards: Path) -> None:
    files = fsspec.filesystem("memory")
    for path in (shards / "shards").glob("*.*"):
        if path.is_file():
            files.pipe_file(f"/bucket/deep/{path.name}", path.read_bytes())
    try:
        for spec in ("memory://bucket/deep", "memory://bucket/deep/*.tar"):
            data = indexed(spec)
            assert len(data) == 44
            assert data.index.header.labels == tuple(sorted(CLASSES))
            assert loader(data).batch(0).images.shape == (5, 3, 24, 20)
        files.rm("/bucket/deep/00003.tar")
        found = open_data("memory://bucket/deep").notes
        assert "1 files of the index are missing: 00003.tar" in found
    finally:
        files.rm("/bucket", recursive=True)


@pytest.mark.parametrize("fault", ["503", "stall", "cut"])
def test_failures_that_pass_are_repeated(server: Faults, fault: str, shards: Path) -> None:
    server.plan = {"00001.tar": [fault, fault, "fine"]}
    data, local = indexed(server.address + PATTERN), train_set(shards / "shards")
    assert data.index.header.damaged == {}
    assert [data.source(n).read() for n in range(44)] == [local.source(n).read() for n in range(44)]


def test_a_server_without_ranges(server: Faults, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitlab.data.shards.store.PIECE", 3000)
    server.plan = {".tar": ["whole"]}
    data = indexed(server.address + PATTERN)
    assert all(data.source(number).read() for number in range(44))


REASONS = {
    "503": "HTTP 503, 3 times",
    "404": "missing",
    "stall": "3 times",
    "cut": "3 times",
}


@pytest.mark.parametrize("fault", REASONS)
def test_a_shard_that_cannot_be_copied_is_listed_and_skipped(
    server: Faults, fault: str, home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = indexed(server.address + PATTERN)
    shutil.rmtree(home / "cache")
    server.plan = {"00002.tar": [fault]}
    caplog.set_level(logging.WARNING)
    found = loader(data, max_broken=0.3)
    began = time.monotonic()
    epoch = torch.cat([found.batch(step).index for step in range(9)])
    assert time.monotonic() - began < 30
    block = [data.index.block(int(data.numbers[number])) for number in epoch.tolist()]
    assert set(block) == {0, 1, 3, 4}
    [(path, reason)] = found.broken.items()
    assert str(path) == "00002.tar"
    assert REASONS[fault] in reason
    assert reason.endswith("(9 images)")
    assert len(caplog.records) == 1
    strict = loader(data, max_broken=0.1)
    message = r"9 of 44 images cannot be read, more than the 10% allowed; one is 00002\.tar: "
    with pytest.raises(DataError, match=message):
        list(strict.batches(0, 9))


def test_a_store_that_is_gone_stops_the_run_with_one_line(server: Faults, home: Path) -> None:
    data = indexed(server.address + PATTERN)
    shutil.rmtree(home / "cache")
    server.plan = {".tar": ["503"]}
    with pytest.raises(DataError, match=r"images can(not)? be read") as caught:
        list(loader(data, workers=2).batches(0, 9))
    assert "\n" not in str(caught.value)
    failing = train_set(server.address + PATTERN)
    server.plan = {".tar": ["503"]}
    with pytest.raises(InputError, match="cannot be read: HTTP 503"):
        failing.source(0).read()
    server.plan = {}
    with pytest.raises(InputError, match="cannot be read: HTTP 503"):
        failing.source(0).read()  # not asked again at once
    failing.index._failed.clear()  # as after index.REST seconds
    assert index_module.REST > 60
    assert failing.source(0).read()
    assert all(data.source(number).read() for number in range(44))


def test_parts_are_not_written_while_the_store_fails(
    server: Faults, shards: Path, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vitlab.jobs.parts.parts.IMAGES", 12)
    address = server.address + PATTERN
    indexed(address)

    def work(images: str, name: str) -> Path:
        predict_parts("cifar10", [images], output=tmp_path / name, batch_size=4)
        merge_predictions(tmp_path / name)
        return tmp_path / name

    shutil.rmtree(home / "cache")
    server.plan = {"00003.tar": ["503"]}
    with pytest.raises(InputError, match=r"HTTP 503, 3 times; parts that are complete stay"):
        work(address, "p.csv")
    assert list((tmp_path / "p.csv.parts").glob("0*"))
    server.plan = {}
    local = work(str(shards / "shards"), "local.csv")
    assert work(address, "p.csv").read_bytes() == local.read_bytes()
    server.plan = {"00003.tar": ["404"]}  # for good: its images are records with an error
    shutil.rmtree(home / "cache")
    found = predict_parts("cifar10", [address], output=tmp_path / "q.csv", batch_size=4)
    assert (found.images, found.failed) == (44, 9)


def test_shards_that_fail_while_they_are_indexed_are_listed(
    server: Faults, shards: Path, tmp_path: Path
) -> None:
    server.plan = {"00001.tar": ["404"]}
    data = indexed(server.address + PATTERN)
    assert data.index.header.damaged == {"00001.tar": "missing"}
    assert len(data) == 35
    assert "00001.tar was not read to its end: missing" in open_data(server.address + PATTERN).notes
    server.plan = {".tar": ["503"]}
    with pytest.raises(DataError, match=r"00000\.tar: HTTP 503, 3 times"):
        write_index(find_layout(server.address + PATTERN), force=True)
    with pytest.raises(DataError, match=r"no shards or tables"):
        find_layout(f"memory://{tmp_path.name}")


# Shards on a disk that are damaged.


def readable(data: IndexedSet, number: int) -> bool:
    try:
        data.source(number).read()
    except InputError:
        return False
    return True


def test_truncated_shards(shards: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(shards / "shards", tmp_path / "shards")
    whole = indexed(str(copy))
    size = (copy / "00001.tar").stat().st_size
    contents = [whole.source(number).read() for number in range(44)]
    os.truncate(copy / "00001.tar", size // 2)
    cut_off = train_set(copy)
    good = [number for number in range(44) if readable(cut_off, number)]
    assert 35 < len(good) < 44
    assert all(cut_off.source(number).read() == contents[number] for number in good)
    lost = next(number for number in range(44) if number not in good)
    with pytest.raises(InputError, match=r"truncated: 00001\.tar ends before byte"):
        cut_off.source(lost).read()
    for cut in (size // 2, size // 2 // 512 * 512, 700, 0):
        os.truncate(copy / "00001.tar", cut)
        write_index(find_layout(str(copy)), force=True)
        found = train_set(copy)
        assert 35 <= len(found) <= len(good)
        assert list(found.index.header.damaged) == ["00001.tar"], cut
        assert all(found.source(number).read() for number in range(len(found)))
    [broken] = check_folder(copy).findings[:1]
    assert (broken.name, broken.items[0].paths) == ("unreadable", ("00001.tar",))
    survey = survey_of(open_data(copy).open_train())
    assert survey is not None
    assert list(survey.broken) == ["00001.tar"]


def test_shards_that_were_written_anew_are_noticed(shards: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(shards / "shards", tmp_path / "shards")
    data = indexed(str(copy))
    pack(shards / "folder", tmp_path / "other", images=9, seed=1)
    for path in (tmp_path / "other").glob("*.tar"):
        shutil.copy(path, copy / path.name)
    with pytest.raises(InputError, match=r"other bytes than the index has; .* data index --force"):
        [data.source(number).read() for number in range(44)]


# The cache.


def test_copies_are_bounded_and_the_oldest_go_first(tmp_path: Path) -> None:
    cache = Cache(tmp_path, 100)
    made: list[str] = []

    def path(key: str, size: int) -> Path:
        def write(file: Any) -> None:
            made.append(key)
            file.write(key.encode() * size)

        time.sleep(0.01)
        return cache.path(key, size, write)

    for key in ("a", "b", "c", "a", "d"):
        assert path(key, 30).read_bytes() == key.encode() * 30
    assert made == ["a", "b", "c", "d"]
    assert path("a", 30).exists()
    assert path("b", 30).read_bytes() == b"b" * 30
    assert made == ["a", "b", "c", "d", "b"]
    assert sum(file.stat().st_size for file in tmp_path.glob("*.copy")) <= 100
    with pytest.raises(DataError, match=r"a copy of 101 bytes; VITLAB_CACHE_LIMIT is 100 bytes"):
        path("e", 101)
    with pytest.raises(DataError, match="29 bytes instead of 30"):
        cache.path("f", 30, lambda file: file.write(b"x" * 29))
    assert len(list(tmp_path.glob("*.copy"))) == 2


def test_a_cache_smaller_than_a_window_is_slow_and_says_so(
    server: Faults, home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    data = indexed(server.address + PATTERN)
    expected = loader(data).batch(3).images
    sizes = data.index.block_size
    shutil.rmtree(home / "cache")
    monkeypatch.setenv("VITLAB_CACHE_LIMIT", str(int(sizes.max()) + 10))
    again = train_set(server.address + PATTERN)
    caplog.set_level(logging.WARNING)
    assert torch.equal(loader(again).batch(3).images, expected)
    assert "VITLAB_CACHE_LIMIT is" in caplog.text
    copies = [path.stat().st_size for path in (home / "cache").glob("*.copy")]
    assert sum(copies) <= int(sizes.max()) + 10


def test_the_limit_of_the_cache_is_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    for text, size in {"500MB": 500e6, "1.5 gb": 1.5e9, "70": 70, "2T": 2e12, "": 20e9}.items():
        monkeypatch.setenv("VITLAB_CACHE_LIMIT", text)
        assert cache_limit() == size
    for text in ("much", "0", "-3MB"):
        monkeypatch.setenv("VITLAB_CACHE_LIMIT", text)
        with pytest.raises(ConfigError, match=r"VITLAB_CACHE_LIMIT is .*; valid: a size such as"):
            cache_limit()


# Stores.


def test_missing_clients_and_strange_addresses_are_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(VitlabError, match=r"s3:// needs an extra: pip install 'vitlab\[s3\]'"):
        find_layout("s3://bucket/x.tar")
    with pytest.raises(DataError, match="strange://bucket: Protocol not known"):
        find_layout("strange://bucket/x.tar")
    with pytest.raises(StoreError, match=r"Cannot connect|refused|3 times"):
        Store("http://127.0.0.1:9").size("x.tar")
    for name, text in (("VITLAB_STORE_TIMEOUT", "soon"), ("VITLAB_STORE_ATTEMPTS", "0")):
        with monkeypatch.context() as patch:
            patch.setenv(name, text)
            with pytest.raises(ConfigError, match=f"{name} is '{text}'; valid: a number above 0"):
                Store("memory://x").size("y")
