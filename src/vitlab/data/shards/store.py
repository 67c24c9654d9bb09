"""Folders on disks and in object stores: sizes, listings and parts of files, with retries.

An address such as `s3://bucket/folder` is read through fsspec. A request without an answer, or with
one that is too short, is repeated; what is missing or refused is not.
"""

import glob
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, BinaryIO, TypeVar

from vitlab.errors import ConfigError, DataError, MissingExtra, VitlabError, one_line

T = TypeVar("T")
TAR, PARQUET, ARROW = ".tar", (".parquet",), (".arrow", ".feather")
SUFFIXES = (TAR, *PARQUET, *ARROW)
"""Endings of shards and tables."""
PIECE = 8 << 20
"""Bytes of one request."""
PAUSE = 0.5
"""Seconds before the first new attempt; doubled from one to the next."""
TIMEOUT, ATTEMPTS = "VITLAB_STORE_TIMEOUT", "VITLAB_STORE_ATTEMPTS"
"""Environment variables: seconds that a request may take, and how often one is made."""
DEFAULTS = {TIMEOUT: 30, ATTEMPTS: 5}
REASON = 120
"""Characters of the reason of a failure."""
TRY_LATER = (408, 425, 429)
"""Client errors that may pass, beside every error of the server."""


MAY_PASS = re.compile(r", \d+ times( \([\d,]+ images\))?$")
"""End of the reason of a failure that was repeated, and may pass later."""


class StoreError(DataError):
    """A file that a store does not deliver; the message leaves out its name."""


def is_address(name: str) -> bool:
    """True for an address in a store, such as `s3://bucket/folder`."""
    scheme, mark, _ = name.partition("://")
    return bool(mark) and scheme.replace("+", "").isalnum()


def may_be_shards(spec: str) -> bool:
    """False if a name is certainly no address, folder or pattern of shards or tables."""
    path = spec.partition("#")[0]
    return is_address(spec) or path.endswith(SUFFIXES) or os.path.isdir(os.path.expanduser(path))


def setting(name: str) -> float:
    """Value of an environment variable, or its default."""
    text = os.environ.get(name, "")
    try:
        value = float(text or DEFAULTS[name])
    except ValueError:
        value = 0
    if not 0 < value < 1e6:
        raise ConfigError(f"{name} is {text!r}; valid: a number above 0")
    return value


@dataclass(frozen=True)
class Store:
    """Files below a folder or an address; names are relative, with slashes."""

    root: str

    @property
    def remote(self) -> bool:
        """True if files must be fetched before they are read."""
        return is_address(self.root)

    def path(self, name: str) -> str:
        """Path or address of a file."""
        return f"{self.root.rstrip('/')}/{name}" if self.remote else os.path.join(self.root, name)

    def size(self, name: str) -> int:
        """Bytes of a file."""
        if not self.remote:
            try:
                return os.stat(self.path(name)).st_size
            except OSError as error:
                raise StoreError(error.strerror or "cannot be read") from error
        found = _persistently(lambda: self._files.size(self._inner(name)))
        if found is None:
            raise StoreError("the server does not say how long it is")
        return int(found)

    def read(self, name: str, start: int, end: int) -> bytes:
        """Bytes from `start` to before `end` of a file in a store."""

        def request() -> bytes:
            content: bytes = self._files.cat_file(self._inner(name), start=start, end=end)
            if len(content) > end - start:  # a server that knows no ranges sends everything
                content = content[start:end]
            if len(content) < end - start:
                raise OSError(f"ended after {start + len(content)} bytes instead of {end}")
            return content

        return _persistently(request)

    def copy(self, name: str, size: int, target: BinaryIO) -> None:
        """Write a file of a store, of this size, into another."""
        for start in range(0, size, PIECE):
            target.write(self.read(name, start, min(start + PIECE, size)))

    def glob(self, pattern: str, endings: tuple[str, ...]) -> list[str]:
        """Names of the files that match a pattern below the root and have an ending, sorted."""
        if self.remote:
            start = self._inner("")
            found = _persistently(lambda: self._files.glob(start + pattern))
        else:
            start = os.path.join(self.root, "")
            found = glob.glob(glob.escape(start) + pattern)
        names = (path.removeprefix(start) for path in found if path.endswith(endings))
        return sorted(name for name in names if self.remote or os.path.isfile(self.path(name)))

    @cached_property
    def _opened(self) -> tuple[Any, str]:
        import fsspec

        try:
            return fsspec.core.url_to_fs(self.root, **_options(self.root))
        except ImportError as error:
            raise _missing(self.root, error) from error
        except Exception as error:  # each store has errors of its own
            raise DataError(f"{self.root}: {one_line(error)}") from error

    @property
    def _files(self) -> Any:
        return self._opened[0]

    def _inner(self, name: str) -> str:
        """Name of a file as the store has it."""
        return f"{self._opened[1].rstrip('/')}/{name}"


def _options(root: str) -> dict[str, Any]:
    """Options of a store's client: connections that fail are not kept waiting."""
    if root.startswith(("http://", "https://")):
        import aiohttp

        seconds = setting(TIMEOUT)
        limits = aiohttp.ClientTimeout(total=None, sock_connect=seconds, sock_read=seconds)
        return {"client_kwargs": {"timeout": limits}}
    return {}


def _missing(root: str, error: ImportError) -> VitlabError:
    scheme = root.partition("://")[0]
    extra = {"s3": "s3", "gs": "gs", "gcs": "gs", "http": "http", "https": "http"}.get(scheme)
    if extra is not None:
        return MissingExtra(extra, f"{scheme}://")
    return DataError(f"{root}: {one_line(error)}")


def _persistently(request: Callable[[], T]) -> T:
    """Result of a request that is repeated while its failure may pass."""
    attempts = int(setting(ATTEMPTS))
    for attempt in range(attempts):
        try:
            return _in_time(request, setting(TIMEOUT))
        except VitlabError:
            raise
        except Exception as error:  # each store has errors of its own
            reason = _final(error)
            if reason is not None:
                raise StoreError(reason) from error
            last = error
        if attempt < attempts - 1:
            time.sleep(PAUSE * 2**attempt)
    raise StoreError(f"{_described(last)}, {attempts} times") from last


def _final(error: Exception) -> str | None:
    """Reason of a failure that no further attempt mends; None: it may pass."""
    while isinstance(error, FileNotFoundError) and isinstance(error.__cause__, Exception):
        error = error.__cause__  # fsspec takes any failure for a missing file
    if isinstance(error, FileNotFoundError):
        return "missing"
    status = getattr(error, "status", None)
    if isinstance(error, PermissionError) or status in (401, 403):
        return "refused (no permission)"
    if isinstance(status, int) and 400 <= status < 500 and status not in TRY_LATER:
        return f"HTTP {status}"
    if isinstance(error, ImportError | TypeError | NotImplementedError):
        return _described(error)
    return None


def _described(error: BaseException) -> str:
    status = getattr(error, "status", None)
    return f"HTTP {status}" if isinstance(status, int) else one_line(error, REASON)


def _in_time(request: Callable[[], T], seconds: float) -> T:
    """Result of a request, in a thread that is left alone when it takes too long."""
    found: list[T] = []
    failed: list[Exception] = []

    def run() -> None:
        try:
            found.append(request())
        except Exception as error:  # raised again by the caller
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if failed:
        raise failed[0]
    if not found:
        raise TimeoutError(f"no answer in {seconds:g} s")
    return found[0]


def expand_braces(pattern: str) -> Iterator[str]:
    """Names that a pattern such as `{000..127}.tar` or `{train,test}.tar` stands for."""
    before, mark, rest = pattern.partition("{")
    inner, end, after = rest.partition("}")
    if not (mark and end):
        yield pattern
        return
    for choice in _choices(inner):
        for tail in expand_braces(after):
            yield f"{before}{choice}{tail}"


def _choices(inner: str) -> list[str]:
    first, dots, last = inner.partition("..")
    if dots and first.isdecimal() and last.isdecimal():
        width = len(first) if first.startswith("0") or len(first) == len(last) else 0
        return [f"{number:0{width}}" for number in range(int(first), int(last) + 1)]
    if "," not in inner:
        raise DataError(f"{{{inner}}}; valid: {{000..127}} or {{a,b}}")
    return inner.split(",")
