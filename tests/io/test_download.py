"""One file over HTTP, from a server on this machine that does everything wrong in turn."""

import hashlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from data.recorded_progress import RecordedProgress
from data.server import Served
from vitlab.errors import DataError
from vitlab.io import download as module
from vitlab.io.download import RemoteFile, download

ROOT = Path(__file__).resolve().parents[1]
CONTENT = bytes(range(251)) * 20_011


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAUSE", 0.0)


@pytest.fixture
def remote(served: Served) -> RemoteFile:
    served.files["some/file.bin"] = CONTENT
    return remote_file(served.address + "some/file.bin")


def remote_file(url: str, content: bytes = CONTENT) -> RemoteFile:
    return RemoteFile(
        url=url, size=len(content), checksum=f"md5:{hashlib.md5(content).hexdigest()}"
    )


def test_a_file_arrives_whole(remote: RemoteFile, tmp_path: Path) -> None:
    told = RecordedProgress()
    path = download(remote, tmp_path, told)
    assert path == tmp_path / "file.bin"
    assert path.read_bytes() == CONTENT
    assert told.steps[0] == ("file.bin", 0, len(CONTENT))
    assert told.steps[-1] == ("file.bin", len(CONTENT), len(CONTENT))
    assert [done for _, done, _ in told.steps] == sorted(done for _, done, _ in told.steps)
    assert os.listdir(tmp_path) == ["file.bin"]


def test_what_is_there_is_not_fetched_again(
    remote: RemoteFile, served: Served, tmp_path: Path
) -> None:
    download(remote, tmp_path)
    download(remote, tmp_path)
    assert len(served.asked) == 1


def test_what_is_there_but_wrong_is_fetched_again(remote: RemoteFile, tmp_path: Path) -> None:
    (tmp_path / "file.bin").write_bytes(CONTENT[:-1] + b"x")
    assert download(remote, tmp_path).read_bytes() == CONTENT


def test_an_earlier_try_is_resumed(remote: RemoteFile, served: Served, tmp_path: Path) -> None:
    (tmp_path / "file.bin.part").write_bytes(CONTENT[:1009])
    assert download(remote, tmp_path).read_bytes() == CONTENT
    assert served.asked == [("/some/file.bin", "bytes=1009-")]


def test_a_server_that_cannot_resume_sends_everything(
    remote: RemoteFile, served: Served, tmp_path: Path
) -> None:
    served.ranges = False
    (tmp_path / "file.bin.part").write_bytes(b"y" * 1009)
    assert download(remote, tmp_path).read_bytes() == CONTENT


def test_a_whole_part_file_needs_no_server(remote: RemoteFile, tmp_path: Path) -> None:
    (tmp_path / "file.bin.part").write_bytes(CONTENT)
    gone = RemoteFile(url="http://127.0.0.1:9/file.bin", size=remote.size, checksum=remote.checksum)
    assert download(gone, tmp_path).read_bytes() == CONTENT


@pytest.mark.parametrize("left", [b"wrong" * 101, CONTENT + b"too long"])
def test_a_useless_earlier_try_costs_nothing_but_time(
    remote: RemoteFile, tmp_path: Path, left: bytes
) -> None:
    (tmp_path / "file.bin.part").write_bytes(left)
    assert download(remote, tmp_path).read_bytes() == CONTENT


def test_a_broken_transfer_goes_on_where_it_broke(
    remote: RemoteFile, served: Served, tmp_path: Path
) -> None:
    served.cut = [10_007, 1_000_003]
    told = RecordedProgress()
    assert download(remote, tmp_path, told).read_bytes() == CONTENT
    assert [asked for _, asked in served.asked] == [None, "bytes=10007-", "bytes=1000003-"]
    assert "ended after 10007 of" in told.notes[0]


def test_a_server_that_brings_nothing_more_is_given_up(
    remote: RemoteFile, served: Served, tmp_path: Path
) -> None:
    served.cut = [10_007] * 9
    with pytest.raises(DataError, match=f"ended after 10007 of {len(CONTENT)} bytes"):
        download(remote, tmp_path)
    assert (tmp_path / "file.bin.part").read_bytes() == CONTENT[:10_007]
    served.cut = []
    assert download(remote, tmp_path).read_bytes() == CONTENT


def test_a_wrong_checksum_is_refused(remote: RemoteFile, served: Served, tmp_path: Path) -> None:
    served.files["some/file.bin"] = CONTENT[:-1] + b"x"
    with pytest.raises(DataError, match=r"file\.bin\.part has md5 \w{32} instead of \w{32}"):
        download(remote, tmp_path)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("content", [CONTENT[:-1], CONTENT + b"x"])
def test_another_length_is_refused_at_once(
    remote: RemoteFile, served: Served, tmp_path: Path, content: bytes
) -> None:
    served.files["some/file.bin"] = content
    with pytest.raises(DataError, match=f"announces {len(content)} bytes instead of"):
        download(remote, tmp_path)
    assert os.listdir(tmp_path) == []


def test_more_than_was_announced_is_never_stored(
    remote: RemoteFile, served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.files["some/file.bin"] = CONTENT * 2
    monkeypatch.setattr(module, "_check_length", lambda *_: None)
    with pytest.raises(DataError, match=f"sends more than the {len(CONTENT)} bytes"):
        download(remote, tmp_path)
    assert (tmp_path / "file.bin.part").stat().st_size <= len(CONTENT)


def test_an_overloaded_server_is_asked_again(
    remote: RemoteFile, served: Served, tmp_path: Path
) -> None:
    served.status = [503]
    assert download(remote, tmp_path).read_bytes() == CONTENT


def test_a_missing_file_is_not_asked_for_again(
    remote: RemoteFile, served: Served, tmp_path: Path
) -> None:
    served.files.clear()
    with pytest.raises(DataError, match="HTTP 404"):
        download(remote, tmp_path)
    assert len(served.asked) == 1


def test_a_server_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not reached"):
        download(remote_file("http://127.0.0.1:9/file.bin"), tmp_path)


def test_a_silent_server_is_given_up(
    remote: RemoteFile, served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TIMEOUT", 0.2)
    quiet = threading.Event()
    served.hold = lambda: quiet.wait(5) and None
    with pytest.raises(DataError, match="timed out"):
        download(remote, tmp_path)
    quiet.set()
    assert (tmp_path / "file.bin.part").stat().st_size > 0


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://127.0.0.1/a", "a.tar.gz"])
def test_only_http_is_fetched(url: str) -> None:
    with pytest.raises(DataError, match="is not an http or https address"):
        remote_file(url)


def test_a_name_is_taken_from_the_address() -> None:
    assert remote_file("http://a.b/c/d%7Ee.gz?x=/y").name == "d~e.gz"


def test_killed_in_the_middle_it_resumes(
    remote: RemoteFile, served: Served, tmp_path: Path
) -> None:
    half, goes_on = threading.Event(), threading.Event()

    def hold() -> None:
        half.set()
        goes_on.wait(20)

    served.hold = hold
    code = (
        "import sys; from pathlib import Path; from vitlab.io.download import *;"
        "download(RemoteFile(url=sys.argv[1], size=int(sys.argv[2]), checksum=sys.argv[3]),"
        " Path(sys.argv[4]))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, remote.url, str(remote.size), remote.checksum, str(tmp_path)],
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
    )
    assert half.wait(60)
    part = tmp_path / "file.bin.part"
    while not (part.exists() and part.stat().st_size > 1 << 20):
        assert process.poll() is None
    process.send_signal(signal.SIGKILL)
    process.wait()
    goes_on.set()
    served.hold = None
    held = part.stat().st_size
    assert 0 < held < len(CONTENT)
    assert os.listdir(tmp_path) == ["file.bin.part"]
    assert download(remote, tmp_path).read_bytes() == CONTENT
    assert served.asked[-1][1] == f"bytes={held}-"


def unknown(served: Served) -> RemoteFile:
    """A file of which nothing is published but its address."""
    served.files["some/file.bin"] = CONTENT
    return RemoteFile(url=served.address + "some/file.bin", size=None, checksum=None)


def test_a_file_of_unknown_size_arrives_whole(served: Served, tmp_path: Path) -> None:
    told = RecordedProgress()
    assert download(unknown(served), tmp_path, told).read_bytes() == CONTENT
    assert told.steps[-1] == ("file.bin", len(CONTENT), len(CONTENT))
    assert os.listdir(tmp_path) == ["file.bin"]


def test_without_a_checksum_the_same_edition_is_resumed(served: Served, tmp_path: Path) -> None:
    served.tag, served.cut = '"one"', [10_007]
    assert download(unknown(served), tmp_path).read_bytes() == CONTENT
    assert [asked for _, asked in served.asked] == [None, "bytes=10007-"]
    assert os.listdir(tmp_path) == ["file.bin"]


def test_without_a_checksum_another_edition_is_never_mixed_in(
    served: Served, tmp_path: Path
) -> None:
    remote = unknown(served)
    served.tag, served.cut = '"one"', [10_007] * 9
    with pytest.raises(DataError, match="ended after 10007"):
        download(remote, tmp_path)
    served.tag, served.cut = '"two"', []
    served.files["some/file.bin"] = CONTENT[::-1]
    assert download(remote, tmp_path).read_bytes() == CONTENT[::-1]


@pytest.mark.parametrize("tag", [None, 'W/"one"'])
def test_without_a_checksum_and_a_strong_tag_all_is_sent_again(
    served: Served, tmp_path: Path, tag: str | None
) -> None:
    served.tag, served.cut = tag, [10_007]
    assert download(unknown(served), tmp_path).read_bytes() == CONTENT
    assert [asked for _, asked in served.asked] == [None, None]


def test_a_file_of_unknown_length_is_refused(served: Served, tmp_path: Path) -> None:
    served.announce = False
    with pytest.raises(DataError, match=r"does not say how long file\.bin is"):
        download(unknown(served), tmp_path)
    assert os.listdir(tmp_path) == []


def test_the_beginning_of_a_checksum_is_checked(served: Served, tmp_path: Path) -> None:
    digest = hashlib.sha256(CONTENT).hexdigest()
    url = unknown(served).url
    good = RemoteFile(url=url, size=None, checksum=f"sha256:{digest[:8]}")
    assert download(good, tmp_path).read_bytes() == CONTENT
    for wrong in (digest[1:9], ""):
        with pytest.raises(DataError, match="has sha256"):
            download(RemoteFile(url=url, size=None, checksum=f"sha256:{wrong}"), tmp_path)
        assert os.listdir(tmp_path) == []
