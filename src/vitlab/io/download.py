"""Download one file over HTTP: resumable, verified, and in place only when complete."""

import errno
import http.client
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, Protocol, TypeVar, runtime_checkable

from vitlab.errors import DataError
from vitlab.io.files import check_file, locked, sync, writable_home

T = TypeVar("T")

BLOCK = 1 << 20
"""Bytes read at once."""
TIMEOUT = 20.0
"""Seconds without data after which a server counts as unreachable."""
ATTEMPTS = 5
"""Number of times that a broken transfer is resumed while each attempt makes progress."""
PAUSE = 0.5
"""Seconds before the first new attempt; doubled from one to the next."""
LARGEST = 64 << 30
"""Maximum bytes of a file whose size is known only from the server."""
DIGITS = {"sha256": 64, "sha512": 128}
"""Length of the digests that make plain HTTP safe."""
LOOPBACK = ("localhost", "127.0.0.1", "::1")
TRY_LATER = (408, 429, 500, 502, 503, 504)
WORKSHOP = ".fetch"
"""Folder in a home for locks and partial downloads."""
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
"""Error numbers of a full disk or an exhausted quota."""


@runtime_checkable
class Progress(Protocol):
    """Callbacks for the progress of a download."""

    def note(self, line: str) -> None:
        """Report an event: an attempt, or a failure."""

    def advance(self, what: str, done: int, total: int) -> None:
        """Report that `done` of `total` bytes have arrived."""


class Silent:
    """No-op progress callbacks."""

    def note(self, line: str) -> None:
        """Ignore the line."""

    def advance(self, what: str, done: int, total: int) -> None:
        """Ignore the progress."""


SILENT = Silent()


def fetch_once(
    kind: str,
    name: str,
    *,
    good_copy: Callable[[], T | None],
    get: Callable[[Path, Path], T],
    progress: Progress,
) -> T:
    """Good copy of a named thing, else the result of `get(home, work)`.

    Concurrent processes get it once. `kind` is `data` or `weights`; `work` is a folder in that
    home for the download, which stays when it is interrupted.
    """
    found = good_copy()
    if found is not None:
        return found
    home = writable_home(kind)
    work = home / WORKSHOP / name
    work.parent.mkdir(exist_ok=True)

    def waiting() -> None:
        progress.note(f"{name}: another process is fetching it; waiting")

    with locked(work.parent / f"{name}.lock", waiting):
        found = good_copy()
        if found is not None:
            return found
        work.mkdir(exist_ok=True)
        return get(home, work)


@dataclass(frozen=True, kw_only=True, slots=True)
class RemoteFile:
    """A file on a server, and its properties known in advance."""

    url: str
    size: int | None
    """Bytes; a server that announces another number raises. None: the announced number."""
    checksum: str | None
    """`md5:…` or `sha256:…`, or its first digits; None if none is published."""
    limit: int = LARGEST
    """Maximum bytes that a server may announce, where no size is known."""

    def __post_init__(self) -> None:
        if urllib.parse.urlsplit(self.url).scheme not in ("http", "https"):
            raise DataError(f"{self.url} is not an http or https address")

    def check_address(self, url: str) -> None:
        """Raise for an address that allows tampering on the way, or is not a web address.

        Applies to the file's own address and to redirects.
        """
        kind, _, digest = (self.checksum or "").partition(":")
        verified = len(digest) == DIGITS.get(kind)
        local = is_loopback(url) and is_loopback(self.url)
        scheme = urllib.parse.urlsplit(url).scheme
        if scheme == "https" or (scheme == "http" and (verified or local)):
            return
        raise DataError(
            f"{url} is not fetched; valid: https, or http where the whole SHA-256 is known"
        )

    @property
    def name(self) -> str:
        """Last part of the address, as a file name."""
        return Path(urllib.parse.unquote(urllib.parse.urlsplit(self.url).path)).name

    @property
    def host(self) -> str:
        """Name of the server."""
        return urllib.parse.urlsplit(self.url).netloc


def is_loopback(url: str) -> bool:
    """True for an address of this machine, where traffic cannot be intercepted."""
    return urllib.parse.urlsplit(url).hostname in LOOPBACK


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Allow redirects only to addresses that would be valid for the file itself."""

    def __init__(self, remote: RemoteFile) -> None:
        self._remote = remote

    def redirect_request(
        self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        """Close the response instead of reading it: it may be endless."""
        fp.close()
        self._remote.check_address(newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _opener(remote: RemoteFile) -> urllib.request.OpenerDirector:
    """Opener for http and https only; urllib's default also opens ftp, file and data."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
        _Redirects(remote),
    ):
        opener.add_handler(handler)
    return opener


class _Interrupted(Exception):
    """Transfer failed in a way that is worth a retry."""


def download(remote: RemoteFile, folder: Path, progress: Progress = SILENT) -> Path:
    """Download a file into a folder and return its path; an existing file is not fetched again."""
    remote.check_address(remote.url)
    target, part = folder / remote.name, folder / f"{remote.name}.part"
    if target.exists():
        try:
            check_file(target, size=remote.size, checksum=remote.checksum)
        except DataError:
            target.unlink()
        else:
            return target
    resumed = _held(part, remote.size) > 0
    _receive_all(remote, part, progress)
    try:
        check_file(part, size=remote.size, checksum=remote.checksum)
    except DataError as error:
        part.unlink()
        if not resumed:
            raise
        progress.note(f"{error}: what was there from an earlier try is no good, starting anew")
        return download(remote, folder, progress)
    sync(part)
    part.replace(target)
    _tag_of(part).unlink(missing_ok=True)
    return target


def _tag_of(part: Path) -> Path:
    """Path of the file that stores the version (ETag) of a partial download."""
    return part.with_suffix(".tag")


def _held(part: Path, size: int | None) -> int:
    """Number of bytes of an earlier attempt; zero if more than the file has."""
    held = part.stat().st_size if part.exists() else 0
    if size is not None and held > size:
        part.unlink()
        return 0
    return held


def _receive_all(remote: RemoteFile, part: Path, progress: Progress) -> None:
    pause = PAUSE
    for attempt in range(ATTEMPTS):
        held = _held(part, remote.size)
        if held == remote.size:
            return
        try:
            _receive(remote, part, progress)
            return
        except _Interrupted as interruption:
            stuck = attempt > 0 and _held(part, remote.size) <= held
            if stuck or attempt == ATTEMPTS - 1:
                raise DataError(str(interruption)) from interruption
            progress.note(f"{remote.host}: {interruption}; trying again")
            time.sleep(pause)
            pause *= 2


def _receive(remote: RemoteFile, part: Path, progress: Progress) -> None:
    """Run one transfer, from the end of the partial file."""
    held = _held(part, remote.size)
    headers = {"User-Agent": "vitlab", "Accept-Encoding": "identity"}
    if held:
        headers |= _resuming(remote, part, held)
    try:
        request = urllib.request.Request(remote.url, headers=headers)
        with _opener(remote).open(request, timeout=TIMEOUT) as response:
            start = _first_byte(response, held)
            _check_length(response, remote, start)
            size = _size(response, remote, start)
            if remote.checksum is None:
                _tag_of(part).write_text(response.headers.get("ETag", ""))
            with part.open("r+b" if start else "wb") as file:
                file.seek(start)
                file.truncate()
                _copy(response, file, remote.name, size, progress)
    except urllib.error.HTTPError as error:
        _raise_for(error, part)
    except urllib.error.URLError as error:
        raise DataError(f"not reached ({error.reason})") from error
    except (http.client.HTTPException, ConnectionError, TimeoutError) as error:
        raise _Interrupted(str(error) or type(error).__name__) from error
    if part.stat().st_size < size:
        raise _Interrupted(f"ended after {part.stat().st_size} of {size} bytes")


def _resuming(remote: RemoteFile, part: Path, held: int) -> dict[str, str]:
    """Request headers for the rest; without a checksum, only for the same version of the file."""
    wanted = {"Range": f"bytes={held}-"}
    if remote.checksum is not None:
        return wanted
    tag = _tag_of(part).read_text() if _tag_of(part).exists() else ""
    return wanted | {"If-Range": tag} if tag.startswith('"') else {}


def _raise_for(error: urllib.error.HTTPError, part: Path) -> NoReturn:
    message = f"HTTP {error.code} {error.reason}"
    error.close()
    if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and part.exists():
        part.unlink()
        raise _Interrupted(message) from error
    if error.code in TRY_LATER:
        raise _Interrupted(message) from error
    raise DataError(message) from error


def _first_byte(response: http.client.HTTPResponse, held: int) -> int:
    """Offset of the response: a server that cannot resume sends the whole file again."""
    if response.status != http.HTTPStatus.PARTIAL_CONTENT:
        return 0
    range_ = response.headers.get("Content-Range", "")
    if not range_.startswith(f"bytes {held}-"):
        raise DataError(f"requested bytes from {held} on, found {range_!r}")
    return held


def _check_length(response: http.client.HTTPResponse, remote: RemoteFile, start: int) -> None:
    length = _length(response)
    if length is not None and remote.size is not None and length != remote.size - start:
        raise DataError(f"announces {length + start} bytes instead of {remote.size}")


def _length(response: http.client.HTTPResponse) -> int | None:
    length = response.headers.get("Content-Length", "")
    return int(length) if length.isdecimal() else None


def _size(response: http.client.HTTPResponse, remote: RemoteFile, start: int) -> int:
    """Size of the whole file, without which a missing end would go unnoticed."""
    if remote.size is not None:
        return remote.size
    length = _length(response)
    if length is None:
        raise DataError(f"does not say how long {remote.name} is")
    if start + length > remote.limit:
        raise DataError(f"announces {start + length} bytes; valid: at most {remote.limit}")
    return start + length


def _copy(
    response: http.client.HTTPResponse, file: BinaryIO, name: str, size: int, progress: Progress
) -> None:
    progress.advance(name, file.tell(), size)
    while True:
        try:
            block = response.read(BLOCK)
        except OSError as error:  # a time-out, a reset
            raise _Interrupted(
                f"{error or type(error).__name__} after {file.tell()} bytes"
            ) from error
        if not block:
            return
        if file.tell() + len(block) > size:
            raise DataError(f"sends more than the {size} bytes of {name}")
        file.write(block)
        progress.advance(name, file.tell(), size)
