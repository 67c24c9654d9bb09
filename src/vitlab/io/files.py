"""Atomic writes: files are written whole or not at all."""

import json
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from vitlab.errors import FileError

# A lock between processes: a file that the system unlocks however its holder ends.

POLL_SECONDS = 0.2


@contextmanager
def locked(path: Path, waiting: Callable[[], None]) -> Iterator[None]:
    """Hold the lock file exclusively; `waiting` is called once if another process holds it."""
    with path.open("a+b") as file:
        if not try_lock(file.fileno()):
            waiting()
            while not try_lock(file.fileno()):
                time.sleep(POLL_SECONDS)
        yield


if sys.platform == "win32":
    import msvcrt

    def try_lock(handle: int) -> bool:
        """Lock an open file until it is closed; False: another process holds it."""
        os.lseek(handle, 0, os.SEEK_SET)
        try:
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

else:
    import fcntl

    def try_lock(handle: int) -> bool:
        """Lock an open file until it is closed; False: another process holds it."""
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


TEMPORARY = ".tmp"
"""Suffix of the hidden files and folders in which results are written."""

LOCKS = os.name != "nt"
"""True if a file can be moved while locked; not on Windows, where nothing is removed."""


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Temporary file that replaces `path` when it is complete, and never otherwise."""
    with _temporary(path, tempfile.mkstemp) as name:
        try:
            with open(name, "w+b") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.chmod(name, 0o666 & ~_umask())
            os.replace(name, path)
        except OSError as error:
            raise FileError(f"{path}: cannot be written ({error.strerror})") from error


@contextmanager
def staged_folder(path: Path) -> Iterator[Path]:
    """Hidden folder beside `path`; unless it is moved, it is removed at the end."""
    with _temporary(path, _make_folder) as name:
        yield Path(name)


@contextmanager
def _temporary(path: Path, make: Callable[..., tuple[int, str]]) -> Iterator[str]:
    """New file or folder beside `path`, locked as long as its process works on it.

    The system unlocks it when the process ends, for any reason. The next process that writes `path`
    removes it.
    """
    folder, prefix = path.absolute().parent, f".{path.name}."
    try:
        _remove_abandoned(folder, prefix)
        handle, name = make(dir=folder, prefix=prefix, suffix=TEMPORARY)
        while not _claimed(handle, name):
            os.close(handle)
            handle, name = make(dir=folder, prefix=prefix, suffix=TEMPORARY)
    except OSError as error:
        raise FileError(f"{path}: cannot be written ({error.strerror})") from error
    try:
        if not LOCKS:
            os.close(handle)
        yield name
    finally:
        _remove(name)
        if LOCKS:
            os.close(handle)


def _make_folder(**options: Any) -> tuple[int, str]:
    name = tempfile.mkdtemp(**options)
    return os.open(name if LOCKS else os.devnull, os.O_RDONLY), name


def _claimed(handle: int, name: str) -> bool:
    """Lock a new file; False: another process considered it abandoned before."""
    with suppress(OSError):  # without locks, nothing is ever found abandoned
        if LOCKS and not try_lock(handle):
            return False
    return os.path.exists(name)


def _remove_abandoned(folder: Path, prefix: str) -> None:
    """Remove temporary files of killed processes."""
    if not LOCKS:
        return
    pattern = re.compile(rf"{re.escape(prefix)}[a-z0-9_]{{8}}{re.escape(TEMPORARY)}")
    for name in filter(pattern.fullmatch, os.listdir(folder)):
        with suppress(OSError):
            handle = os.open(folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                if try_lock(handle):
                    _remove(str(folder / name))
            finally:
                os.close(handle)


def _remove(name: str) -> None:
    if os.path.isdir(name):
        shutil.rmtree(name, ignore_errors=True)
    else:
        Path(name).unlink(missing_ok=True)


def write_json(path: Path, content: Any) -> None:
    """Write human-readable JSON, replacing an existing file."""
    with replacing(path) as file:
        file.write(json.dumps(content, indent=2).encode() + b"\n")


def write_files(folder: Path, contents: Mapping[str, bytes]) -> tuple[Path, ...]:
    """Write files into a folder, created if missing; return their paths."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"{folder}: cannot be made ({error.strerror})") from error
    for name, content in contents.items():
        with replacing(folder / name) as file:
            file.write(content)
    return tuple(folder / name for name in contents)


def sync(path: Path) -> None:
    """Flush a written file to disk before anything relies on it."""
    with path.open("r+b") as file:
        os.fsync(file.fileno())


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def check_parent(path: Path) -> None:
    """Raise for a file in a missing folder, before anything is computed for it."""
    if not path.absolute().parent.is_dir():
        raise FileError(f"{path}: there is no folder {path.absolute().parent}")
