"""Local copies of shards from stores and of columns from Parquet files, bounded in size.

Processes share the copies: one makes each, the others wait. Copies that were used longest ago are
deleted; files outside of the cache never are.
"""

import errno
import hashlib
import os
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from vitlab.errors import ConfigError, DataError, FileError
from vitlab.io.files import locked, replacing, writable_home

LIMIT = "VITLAB_CACHE_LIMIT"
"""Environment variable: bytes of all copies, such as `50GB`."""
DEFAULT = "20GB"
UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
SUFFIX = ".copy"
LOCKS = 64
"""Number of lock files: copies of one number wait for each other."""


def cache_limit() -> int:
    """Bytes of all copies."""
    text = os.environ.get(LIMIT) or DEFAULT
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?([KMGT]?)B?", text.upper())
    if found is None or not float(found[1]):
        raise ConfigError(f"{LIMIT} is {text!r}; valid: a size such as 500MB or 50GB")
    return int(float(found[1]) * UNITS[found[2]])


@dataclass(frozen=True)
class Cache:
    """A folder of copies."""

    folder: Path
    limit: int

    @classmethod
    def open(cls) -> "Cache":
        """The cache of the user, or below the folder in VITLAB_DATA."""
        folder = writable_home("data") / "cache"
        folder.mkdir(exist_ok=True)
        return cls(folder, cache_limit())

    def path(
        self, key: str, size: int, write: Callable[[BinaryIO], None], *, fresh: bool = False
    ) -> Path:
        """File of `size` bytes that `write` makes, unless it is there; `fresh`: in any case."""
        name = hashlib.blake2b(key.encode(errors="surrogateescape"), digest_size=16).hexdigest()
        target = self.folder / f"{name}{SUFFIX}"
        if not fresh and self._used(target, size):
            return target
        with locked(self.folder / f"{int(name, 16) % LOCKS}.lock", lambda: None):
            if fresh or not self._used(target, size):
                self._make_room(size)
                self._write(target, size, write)
        return target

    def _used(self, target: Path, size: int) -> bool:
        """Note the use of a copy; False: it is not there, or not whole."""
        try:
            if target.stat().st_size != size:
                return False
            os.utime(target)
        except OSError:
            return False
        return True

    def _write(self, target: Path, size: int, write: Callable[[BinaryIO], None]) -> None:
        try:
            with replacing(target) as file:
                write(file)
                if file.tell() != size:
                    raise DataError(f"{file.tell()} bytes instead of {size}")
        except FileError as error:
            cause = error.__cause__
            full = isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT)
            advice = f"; {LIMIT} is {self.limit:,} bytes" if full else ""
            raise DataError(f"{error}{advice}") from error

    def _make_room(self, size: int) -> None:
        """Delete the oldest copies, until `size` more bytes are within the limit."""
        if size > self.limit:
            raise DataError(
                f"a copy of {size:,} bytes; {LIMIT} is {self.limit:,} bytes; valid: at least {size}"
            )
        copies = []
        for path in self.folder.glob(f"*{SUFFIX}"):
            with suppress(OSError):  # another process deleted it
                found = path.stat()
                copies.append((found.st_mtime_ns, found.st_size, path))
        total = size + sum(bytes for _, bytes, _ in copies)
        for _, bytes, path in sorted(copies):
            if total <= self.limit:
                return
            with suppress(OSError):  # on Windows, one that is being read
                path.unlink(missing_ok=True)
                total -= bytes
