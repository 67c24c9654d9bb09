"""Fashion-MNIST's idx files, plain and compressed, from a server and out of a Debian package."""

import gzip
import hashlib
import io
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from data.server import Served
from data.splits import splits
from vitlab.data.datasets import Dataset, Mirror, StoredFile
from vitlab.data.sources import fashion
from vitlab.data.sources.fashion import (
    FASHION_MNIST,
    FILES,
    TEST,
    TRAIN,
    deliver_from_debian,
    read_idx,
)
from vitlab.data.sources.fetch import fetch
from vitlab.data.sources.mirrors import deb_data, gunzip
from vitlab.errors import DataError

SIZES = {"train": 5, "t10k": 3}


def idx(values: np.ndarray) -> bytes:
    """As the format's own page describes it: two zeros, 8 for bytes, axes, lengths, values."""
    header = bytes([0, 0, 8, values.ndim])
    return header + b"".join(n.to_bytes(4, "big") for n in values.shape) + values.tobytes()


def made() -> dict[str, bytes]:
    random = np.random.default_rng(0)
    contents = {}
    for split, names in (("train", TRAIN), ("t10k", TEST)):
        contents[names[0]] = idx(random.integers(256, size=(SIZES[split], 28, 28), dtype=np.uint8))
        contents[names[1]] = idx(np.arange(SIZES[split], dtype=np.uint8))
    return contents


CONTENTS = made()
TINY_FILES = tuple(
    StoredFile(
        name=file.name,
        size=len(CONTENTS[file.name]),
        checksum=f"md5:{hashlib.md5(CONTENTS[file.name]).hexdigest()}",
    )
    for file in FILES
)


def check(folder: Path) -> None:
    for names, data in zip((TRAIN, TEST), splits(FASHION_MNIST.open(folder)), strict=True):
        assert data.images.numpy().tobytes() == CONTENTS[names[0]][16:]
        assert data.images.shape == (len(data), 1, 28, 28)
        assert data.labels.tolist() == list(range(len(data)))


def package(contents: dict[str, bytes]) -> bytes:
    """A Debian package: `ar` with the version, the control files and the data."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:xz") as tar:
        for name, content in contents.items():
            member = tarfile.TarInfo(f"./usr/share/datasets/fashion-mnist/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    parts = {"debian-binary": b"2.0\n", "control.tar.xz": b"odd", "data.tar.xz": data.getvalue()}
    file = b"!<arch>\n"
    for name, content in parts.items():
        file += f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(content):<10}`\n".encode()
        file += content + b"\n" * (len(content) % 2)
    return file


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_both_kinds_of_files_are_read(tmp_path: Path, suffix: str) -> None:
    for name, content in CONTENTS.items():
        packed = gzip.compress(content) if suffix else content
        (tmp_path / (name + suffix)).write_bytes(packed)
    check(tmp_path)


def test_from_the_official_server(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = {name: gzip.compress(content) for name, content in CONTENTS.items()}
    served.files = {f"{name}.gz": content for name, content in packed.items()}
    monkeypatch.setattr(fashion, "FILES", TINY_FILES)
    monkeypatch.setattr(
        fashion,
        "PACKED",
        [(name, len(packed[name]), hashlib.sha256(packed[name]).hexdigest()) for name in packed],
    )
    mirror = fashion.server_mirror(served.address)
    check(fetch(replace(FASHION_MNIST, files=TINY_FILES, folders=(), mirrors=(mirror,))).path)


@pytest.fixture
def debian(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Dataset:
    """The dataset from a package that an `apt-get` of ours brings."""
    packed = {f"{name}.gz": gzip.compress(content) for name, content in CONTENTS.items()}
    content = package(packed)
    (tmp_path / "f.deb").write_bytes(content)
    client = tmp_path / "apt-get"
    client.write_text(f'#!/bin/sh\ntest "$1" = download && cp {tmp_path}/f.deb .\n')
    client.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(fashion, "FILES", TINY_FILES)
    monkeypatch.setattr(fashion, "DEBIAN_SIZES", tuple(map(len, packed.values())))
    digest = hashlib.sha256(content).hexdigest()
    remote = StoredFile(name="f.deb", size=len(content), checksum=f"sha256:{digest}")
    monkeypatch.setattr(fashion, "DEBIAN", remote)
    mirror = Mirror(name="apt", deliver=deliver_from_debian)
    return replace(FASHION_MNIST, files=TINY_FILES, folders=(), mirrors=(mirror,))


def test_from_a_debian_package(debian: Dataset) -> None:
    check(fetch(debian).path)


def test_a_debian_package_of_other_content_is_refused(debian: Dataset, tmp_path: Path) -> None:
    (tmp_path / "f.deb").write_bytes(package({"x": b"odd"}))
    with pytest.raises(DataError, match="apt"):
        fetch(debian)


def test_the_installed_debian_package_is_found(tmp_path: Path) -> None:
    for name, content in CONTENTS.items():
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(content))
    installed = replace(FASHION_MNIST, folders=(str(tmp_path),))
    assert installed.find() == tmp_path
    assert "/usr/share/datasets/fashion-mnist" in FASHION_MNIST.folders


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is not an idx file of bytes with 3 axes"),
        (idx(np.zeros((2, 2), np.uint8)), "is not an idx file of bytes with 3 axes"),
        (CONTENTS[TRAIN[0]][:-1], "has 3919 values, its header says"),
        (CONTENTS[TRAIN[0]] + b"x", "has 3921 values, its header says"),
    ],
)
def test_a_damaged_idx_file_is_one_line(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / "images").write_bytes(content)
    with pytest.raises(DataError, match=reason):
        read_idx(tmp_path / "images", axes=3)
    (tmp_path / "packed.gz").write_bytes(gzip.compress(content)[:-3])
    with pytest.raises(DataError, match=r"packed\.gz is damaged"):
        read_idx(tmp_path / "packed", axes=3)


def test_files_that_do_not_belong_together(tmp_path: Path) -> None:
    (tmp_path / TRAIN[0]).write_bytes(CONTENTS[TRAIN[0]])
    (tmp_path / TRAIN[1]).write_bytes(CONTENTS[TEST[1]])
    with pytest.raises(DataError, match="do not belong together"):
        FASHION_MNIST.open(tmp_path).open_train()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"PK", "is not a Debian package"),
        (b"!<arch>\nshort", "a member without a size"),
        (package({})[:72], "does not hold data.tar"),
    ],
)
def test_a_damaged_package_is_one_line(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / "f.deb").write_bytes(content)
    with pytest.raises(DataError, match=reason), deb_data(tmp_path / "f.deb"):
        pytest.fail("opened")


def test_a_file_that_grows_too_large_is_stopped(tmp_path: Path) -> None:
    (tmp_path / "bomb.gz").write_bytes(gzip.compress(b"\x00" * 5_000_000))
    with pytest.raises(DataError, match=r"bomb\.gz holds more than 1000000 bytes"):
        gunzip(tmp_path / "bomb.gz", tmp_path / "bomb", limit=1_000_000)


def test_the_table_fits_the_official_numbers() -> None:
    assert FASHION_MNIST.size == 70_000 * 785 + 2 * (16 + 8)
    assert len(FASHION_MNIST.open(Path()).labels) == 10
