"""Zip and tar files of images are unpacked once and read as folders; hostile ones are refused."""

import io
import os
import tarfile
import zipfile
from pathlib import Path

import pytest

from data.picture_files import encoded, picture
from vitlab.data.check.check import check_folder
from vitlab.data.datasets import open_data
from vitlab.data.images import FileSet
from vitlab.data.sources import archive
from vitlab.data.sources.folder import open_unlabelled
from vitlab.errors import DataError

KINDS = ("a.zip", "b.tar", "c.tar.gz", "d.tgz", "e.tar.xz", "F.ZIP")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VITLAB_DATA", str(tmp_path / "home"))
    return tmp_path / "home"


def pack(path: Path, files: dict[str, bytes]) -> Path:
    """Archive of the kind that its name tells."""
    if path.suffix.lower() == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as zipped:
            for name, content in files.items():
                zipped.writestr(name, content)
        return path
    mode = {".gz": "w:gz", ".tgz": "w:gz", ".xz": "w:xz"}.get(path.suffix, "w")
    with tarfile.open(path, mode) as packed:  # type: ignore[call-overload]
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            packed.addfile(entry, io.BytesIO(content))
    return path


def images(prefix: str = "") -> dict[str, bytes]:
    return {
        f"{prefix}{label}/{number}.png": encoded(picture(10 * number + len(label), 13, 17), "PNG")
        for label in ("ant", "mouse")
        for number in range(5)
    }


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("prefix", ["", "photos/", "x/photos/"])
def test_an_archive_is_its_folder(name: str, prefix: str, tmp_path: Path, home: Path) -> None:
    extra = {"__MACOSX/ant/._1.png": b"x", f"{prefix}notes.txt": b"x", f"{prefix}ant/.hid.png": b""}
    path = pack(tmp_path / name, images(prefix) | extra)
    source = open_data(path)
    assert (source.name, source.labels) == (name, ("ant", "mouse"))
    train = source.open_train()
    assert isinstance(train, FileSet)
    assert len(train) == 8
    before = sorted(home.rglob("*"))
    assert len([file for file in before if file.suffix == ".png"]) == 10
    again = open_data(str(path)).open_train()
    assert isinstance(again, FileSet)
    assert again.paths == train.paths
    assert sorted(home.rglob("*")) == before
    assert check_folder(path).images == 10


def test_splits_stay_splits(tmp_path: Path) -> None:
    path = pack(tmp_path / "a.zip", images("train/") | images("test/"))
    source = open_data(path)
    assert source.open_test is not None
    assert len(source.open_train()) == len(source.open_test()) == 10
    flat = {f"{number}.png": content for number, content in enumerate(images().values())}
    assert len(open_unlabelled(pack(tmp_path / "b.tar", flat)).open_train()) == 10


def test_a_changed_file_is_unpacked_again(tmp_path: Path) -> None:
    path = pack(tmp_path / "a.zip", images())
    assert len(open_data(path).labels) == 2
    pack(path, images() | {f"cat/{n}.png": encoded(picture(n, 5, 7), "PNG") for n in range(3)})
    os.utime(path, ns=(1, 1))
    assert open_data(path).labels == ("ant", "cat", "mouse")


@pytest.mark.parametrize("name", ["a.zip", "b.tar.gz"])
@pytest.mark.parametrize("member", ["../out.png", "/tmp/out.png", "a/../../out.png", "..\\out.png"])
def test_nothing_is_written_outside(name: str, member: str, tmp_path: Path, home: Path) -> None:
    path = pack(tmp_path / name, {member: b"x"})
    with pytest.raises(DataError, match="outside of its folder"):
        open_data(path)
    assert not list(tmp_path.rglob("out.png"))
    assert not [file for file in home.rglob("*") if file.is_dir() and file.name != "unpacked"]


def test_links_are_left_out(tmp_path: Path, home: Path) -> None:
    path = pack(tmp_path / "a.tar", images())
    with tarfile.open(path, "a") as packed:
        entry = tarfile.TarInfo("ant/link.png")
        entry.type, entry.linkname = tarfile.SYMTYPE, "/etc/passwd"
        packed.addfile(entry)
    open_data(path)
    assert not list(home.rglob("link.png"))


@pytest.mark.parametrize("cut", [0, 3, 200])
@pytest.mark.parametrize("name", ["a.zip", "b.tar.gz", "c.tar.xz"])
def test_damaged_archives_are_one_line(name: str, cut: int, tmp_path: Path, home: Path) -> None:
    path = pack(tmp_path / name, images())
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(DataError, match=r"cannot be unpacked|no image files") as caught:
        open_data(path)
    assert "\n" not in str(caught.value)
    assert not list(home.rglob("*.png"))


def test_bombs_and_empty_archives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = pack(tmp_path / "a.zip", {"a/1.png": bytes(1_000_000), "b/1.png": bytes(1_000_000)})
    monkeypatch.setattr(archive, "ROOM", 1000)
    with pytest.raises(DataError, match="unpacks to more than 20 times its size"):
        open_data(path)
    with pytest.raises(DataError, match="no image files in it"):
        open_data(pack(tmp_path / "b.zip", {"notes.txt": b"x"}))
