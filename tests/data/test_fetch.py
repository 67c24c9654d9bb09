"""A dataset brought home: mirrors in order, verified, in place at once or not at all."""

import errno
import hashlib
import os
import threading
from pathlib import Path

import pytest

from data.recorded_progress import RecordedProgress
from data.server import Served
from vitlab.data import datasets
from vitlab.data.datasets import Dataset, DataSource, Mirror, StoredFile, dataset, open_data
from vitlab.data.sources.fetch import fetch
from vitlab.errors import DataError, UnknownName
from vitlab.io.download import Progress, RemoteFile, download
from vitlab.io.files import homes, user_cache, writable_home
from vitlab.registry import DATASETS

FILES = {"a.bin": b"first" * 1009, "b.bin": b"second" * 2003}


def md5(content: bytes) -> str:
    return f"md5:{hashlib.md5(content).hexdigest()}"


def open_toy(folder: Path) -> DataSource:
    return DataSource(
        name=str(folder),
        labels=("x", "y"),
        channels=1,
        image_size=(1, 1),
        open_train=lambda: pytest.fail("not to be opened"),
        open_test=None,
        mean=(0.5,),
        std=(0.5,),
    )


def toy(*mirrors: Mirror) -> Dataset:
    return Dataset(
        name="toy",
        title="a toy",
        licence="none",
        classes=2,
        images=(1, 1),
        open=open_toy,
        files=tuple(
            StoredFile(name=name, size=len(content), checksum=md5(content))
            for name, content in FILES.items()
        ),
        folders=("other-name",),
        mirrors=mirrors,
    )


def server(address: str, name: str = "server") -> Mirror:
    """A mirror that has the two files."""

    def deliver(work: Path, ready: Path, progress: Progress) -> None:
        for file, content in FILES.items():
            remote = RemoteFile(url=address + file, size=len(content), checksum=md5(content))
            path = download(remote, work, progress)
            (ready / file).write_bytes(path.read_bytes())

    return Mirror(name=name, deliver=deliver)


def failing(name: str, error: Exception) -> Mirror:
    def deliver(work: Path, ready: Path, progress: Progress) -> None:
        (ready / "a.bin").write_bytes(b"half")
        raise error

    return Mirror(name=name, deliver=deliver)


def writing(content: dict[str, bytes], name: str = "writer") -> Mirror:
    def deliver(work: Path, ready: Path, progress: Progress) -> None:
        for file, data in content.items():
            (ready / file).write_bytes(data)

    return Mirror(name=name, deliver=deliver)


def visible(home: Path) -> list[str]:
    return sorted(name for name in os.listdir(home) if not name.startswith("."))


def test_the_first_mirror_that_works_is_used(served: Served, home: Path) -> None:
    served.files = dict(FILES)
    told = RecordedProgress()
    fetched = fetch(
        toy(
            failing("one", DataError("is closed")),
            failing("two", OSError(5, "Input/output error")),
            server(served.address, "three"),
            failing("four", AssertionError("never asked")),
        ),
        told,
    )
    assert (fetched.path, fetched.mirror) == (home / "toy", "three")
    assert {path.name: path.read_bytes() for path in fetched.path.iterdir()} == FILES
    assert visible(home) == ["toy"]
    assert told.notes == [
        "toy: from one",
        "toy: one: is closed",
        "toy: from two",
        "toy: two: [Errno 5] Input/output error",
        "toy: from three",
    ]
    assert not (home / ".fetch" / "toy").exists()


def test_when_no_mirror_works_each_reason_is_given(home: Path) -> None:
    with pytest.raises(
        DataError, match=r"^toy could not be fetched: one: is closed; two: is gone$"
    ):
        fetch(toy(failing("one", DataError("is closed")), failing("two", DataError("is gone"))))
    assert visible(home) == []


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ({"a.bin": FILES["a.bin"]}, "b.bin is missing"),
        (FILES | {"b.bin": FILES["b.bin"][:-1]}, "b.bin has 12017 bytes instead of 12018"),
        (FILES | {"b.bin": b"x" * 12018}, r"b.bin has md5 \w+ instead of"),
    ],
)
def test_what_is_not_the_original_does_not_land(
    home: Path, content: dict[str, bytes], reason: str
) -> None:
    with pytest.raises(DataError, match=reason):
        fetch(toy(writing(content)))
    assert visible(home) == []


def test_a_second_time_nothing_is_asked(home: Path) -> None:
    fetch(toy(writing(FILES)))
    fetched = fetch(toy(failing("any", AssertionError("asked"))))
    assert (fetched.path, fetched.mirror) == (home / "toy", None)


def test_a_damaged_copy_is_replaced_and_other_files_stay(home: Path) -> None:
    fetch(toy(writing(FILES)))
    (home / "toy" / "a.bin").write_bytes(b"x" * len(FILES["a.bin"]))
    (home / "toy" / "mine.txt").write_text("mine")
    told = RecordedProgress()
    assert fetch(toy(writing(FILES)), told).mirror == "writer"
    assert (home / "toy" / "a.bin").read_bytes() == FILES["a.bin"]
    assert (home / "toy" / "mine.txt").read_text() == "mine"
    assert "a.bin has md5" in told.notes[0]


def test_a_transfer_that_broke_is_resumed_by_the_next_fetch(served: Served, home: Path) -> None:
    served.files = dict(FILES)
    served.status = [200, 404]
    with pytest.raises(DataError, match="HTTP 404"):
        fetch(toy(server(served.address)))
    assert visible(home) == []
    fetch(toy(server(served.address)))
    assert [path for path, _ in served.asked] == ["/a.bin", "/b.bin", "/b.bin"]


def test_no_room_is_said_at_once(home: Path) -> None:
    full = failing("one", OSError(errno.ENOSPC, "No space left on device"))
    with pytest.raises(DataError, match=r"home: no room for toy \(No space left on device\)"):
        fetch(toy(full, failing("two", AssertionError("never asked"))))


def test_two_at_once_fetch_it_once(home: Path) -> None:
    started, goes_on, delivered = threading.Event(), threading.Event(), []

    def deliver(work: Path, ready: Path, progress: Progress) -> None:
        started.set()
        assert goes_on.wait(20)
        delivered.append(ready)
        for file, data in FILES.items():
            (ready / file).write_bytes(data)

    slow = toy(Mirror(name="slow", deliver=deliver))
    first = threading.Thread(target=fetch, args=(slow,))
    first.start()
    assert started.wait(20)
    told = RecordedProgress()
    second = threading.Thread(target=fetch, args=(slow, told))
    second.start()
    while not told.notes:
        pass
    goes_on.set()
    first.join()
    second.join()
    assert len(delivered) == 1
    assert told.notes == ["toy: another process is fetching it; waiting"]


def test_an_official_folder_of_another_name_is_used(home: Path) -> None:
    (home / "other-name").mkdir(parents=True)
    for name, content in FILES.items():
        (home / "other-name" / name).write_bytes(content)
    assert fetch(toy()).path == home / "other-name"


def test_a_home_that_cannot_be_written_is_read_and_left_alone(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "toy").mkdir(parents=True)
    for name, content in FILES.items():
        (home / "toy" / name).write_bytes(content)
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != home)
    before = sorted(home.rglob("*"))
    assert fetch(toy()).path == home / "toy"
    (home / "toy" / "a.bin").unlink()
    before.remove(home / "toy" / "a.bin")
    assert fetch(toy(writing(FILES))).path == user_cache("data") / "toy"
    assert sorted(home.rglob("*")) == before
    assert toy().find() == user_cache("data") / "toy"


def test_homes(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert homes("data") == (home, tmp_path / "cache" / "vitlab" / "data")
    assert writable_home("data") == home
    monkeypatch.delenv("VITLAB_DATA")
    assert homes("data") == (tmp_path / "cache" / "vitlab" / "data",)
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert homes("data") == (tmp_path / ".cache" / "vitlab" / "data",)
    monkeypatch.setenv("VITLAB_DATA", "~/d")
    assert homes("data")[0] == tmp_path / "d"


def test_no_home_at_all_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("VITLAB_DATA", str(tmp_path / "file" / "x"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(DataError, match=r"no folder for data can be written: .*set VITLAB_DATA"):
        writable_home("data")


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> Dataset:
    """The toy under its name, as long as the test runs."""
    made = toy(writing(FILES))
    monkeypatch.setitem(DATASETS._entries, "toy", made)
    return made


def test_nothing_is_fetched_unless_asked(registered: Dataset, home: Path) -> None:
    with pytest.raises(DataError, match=r"toy is not in .*home.*; get it: vitlab data fetch toy$"):
        open_data("toy")
    assert not home.exists()
    assert open_data("toy", download=True).name == str(home / "toy")
    assert open_data("toy").name == str(home / "toy")


def test_a_name_comes_before_a_folder_of_that_name(
    registered: Dataset, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch(registered)
    monkeypatch.chdir(tmp_path)
    for name in ("one/1.png", "two/2.png"):
        (tmp_path / "toy" / name).parent.mkdir(parents=True)
        (tmp_path / "toy" / name).write_bytes(b"")
    assert open_data("toy").name == str(home / "toy")
    assert open_data("./toy").labels == ("one", "two")
    assert open_data(tmp_path / "toy").labels == ("one", "two")


def test_what_is_neither_name_nor_folder() -> None:
    with pytest.raises(UnknownName, match=r"unknown dataset or folder 'cifar'; did you mean cifar"):
        open_data("cifar")
    with pytest.raises(DataError, match="no/such: no such folder"):
        open_data("no/such")
    with pytest.raises(UnknownName, match="unknown dataset 'sampel'; did you mean sample"):
        dataset("sampel")


def test_a_dataset_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DATASETS._entries, "mine", lambda: open_toy(Path("x")))
    assert open_data("mine").name == "x"
    monkeypatch.setitem(DATASETS._entries, "mine", lambda: 3)
    with pytest.raises(DataError, match="dataset 'mine' gave a int"):
        open_data("mine")
    with pytest.raises(DataError, match="registered as a function"):
        datasets.dataset("mine")
