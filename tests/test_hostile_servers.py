"""Servers that redirect elsewhere, never end, or answer nonsense."""

import hashlib
import re
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from command import Command, Outcome
from data.server import listening
from vitlab.cli.main import run
from vitlab.errors import DataError
from vitlab.io.download import RemoteFile, download
from weights.bundles import make_bundle
from weights.hub_server import Hub, _Handler, standing_in

# The hub's client hands files to httpx in a way that httpx would rather not see.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")
ENDLESS = 10 << 30


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    def call(*arguments: object) -> Outcome:
        code = run([str(argument) for argument in arguments])
        written = capsys.readouterr()
        return Outcome(code, written.out, written.err)

    return call


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    (tmp_path / "home").mkdir()
    with standing_in(monkeypatch, tmp_path / "home") as started:
        yield started


def endless(handler: BaseHTTPRequestHandler) -> int:
    """Send zeros until the client goes away; how many went out."""
    handler.send_response(200)
    handler.end_headers()
    handler.close_connection = True
    sent = 0
    try:
        while sent < ENDLESS:
            sent += handler.wfile.write(bytes(1 << 20))
    except OSError:
        pass
    return sent


@pytest.mark.parametrize(
    "target", ["ftp://127.0.0.1/x", "file:///etc/hostname", "data:,x", "http://example.com/x"]
)
def test_a_redirect_leads_to_https_alone(tmp_path: Path, target: str) -> None:
    class Redirecting(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(302)
            self.send_header("Location", target)
            self.end_headers()

    with listening(Redirecting) as address:
        for checksum in (None, "md5:" + 32 * "0", "sha256:0000"):
            remote = RemoteFile(url=f"{address}/file.bin", size=None, checksum=checksum)
            with pytest.raises(DataError, match=r"not fetched; valid: https|not allowed"):
                download(remote, tmp_path)


@pytest.mark.parametrize("checksum", [None, "md5:" + 32 * "0", "sha256:abcdef01"])
def test_plain_http_needs_the_whole_sha256(tmp_path: Path, checksum: str | None) -> None:
    remote = RemoteFile(url="http://example.com/file.bin", size=3, checksum=checksum)
    with pytest.raises(DataError, match="valid: https, or http where the whole SHA-256 is known"):
        download(remote, tmp_path)


def test_what_a_server_announces_is_bounded(tmp_path: Path) -> None:
    class Boasting(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(1 << 50))
            self.end_headers()

    with listening(Boasting) as address:
        remote = RemoteFile(url=f"{address}/file.bin", size=None, checksum=None)
        with pytest.raises(DataError, match=r"announces \d+ bytes; valid: at most"):
            download(remote, tmp_path)


def test_every_mirror_is_https_or_has_a_whole_sha256() -> None:
    from vitlab.data.sources.fashion import PACKED, SERVERS
    from vitlab.weights.resolve import checkpoints

    for server in SERVERS:
        for name, size, digest in PACKED:
            file = RemoteFile(url=server + name, size=size, checksum=f"sha256:{digest}")
            file.check_address(file.url)
    for checkpoint in checkpoints().values():
        checkpoint.remote.check_address(checkpoint.url)


@pytest.mark.parametrize(
    "answer",
    [b"", b"not JSON", b"[1]", b"7", b'"x"', b"{}", b'{"id": 7, "siblings": 7}', b"[" * 100_000]
    + [b'{"id": "a/b", "sha": "../x", "siblings": []}']
    + [b'{"id": "a/b", "siblings": [{"rfilename": 5}], "sha": "' + b"a" * 40 + b'"}'],
)
def test_nonsense_of_the_hub_is_one_line(
    command: Command, hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: bytes
) -> None:
    def info(self: _Handler, *_: object) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    monkeypatch.setattr(_Handler, "info", info)
    told = command("pull", "hf:alice/trees", "--output", tmp_path / "trees").mistake
    assert told.startswith("hf:alice/trees: ")
    assert not (tmp_path / "trees").exists()


@pytest.mark.parametrize("method", ["info", "resolve"])
def test_a_hub_that_never_ends_is_cut_off(
    command: Command, hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    bundle = make_bundle(tmp_path / "bundle")
    hub.publish("alice/trees", {file.name: file.read_bytes() for file in bundle.iterdir()})
    honest, sent = getattr(_Handler, method), []

    def answer(self: _Handler, *arguments: str) -> None:
        if self.command == "HEAD":
            return honest(self, *arguments)
        return sent.append(endless(self))

    monkeypatch.setattr(_Handler, method, answer)
    told = command("pull", "hf:alice/trees", "--output", tmp_path / "trees").mistake
    assert re.search(r"sends more than [\d,]+ bytes", told)
    assert not (tmp_path / "trees").exists()


def test_a_hub_redirects_to_https_alone(
    command: Command, hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for target in ("ftp://127.0.0.1/x", "http://example.com/x", "file:///etc/hostname"):

        def info(self: _Handler, *_: object, target: str = target) -> None:
            self.send_response(302)
            self.send_header("Location", target)
            self.send_header("Content-Length", "0")
            self.end_headers()

        monkeypatch.setattr(_Handler, "info", info)
        told = command("pull", "hf:alice/trees", "--output", tmp_path / "trees").mistake
        assert f"redirected to {target}; valid: an https address" in told
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://hub.example.com")
    told = command("pull", "hf:alice/trees", "--output", tmp_path / "trees").mistake
    assert "HF_ENDPOINT is http://hub.example.com; valid: an https address" in told


def test_a_wrong_file_over_http_is_noticed(tmp_path: Path) -> None:
    class Files(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "3")
            self.end_headers()
            self.wfile.write(b"bad")

    with listening(Files) as address:
        checksum = f"sha256:{hashlib.sha256(b'big').hexdigest()}"
        remote = RemoteFile(url=f"{address}/file.bin", size=3, checksum=checksum)
        with pytest.raises(DataError, match="has sha256"):
            download(remote, tmp_path)
    assert not list(tmp_path.glob("file.bin*"))
