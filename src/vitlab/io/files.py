"""Files: written whole or not at all, locked between processes, checked by size and digest."""

import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from vitlab.errors import DataError, FileError

# Locks between processes, which the system releases however their holder ends. Files are locked by
# descriptor: results and temporary files are locked themselves, without a lock file beside them.

POLL_SECONDS = 0.2


@contextmanager
def locked(path: Path, waiting: Callable[[], None]) -> Iterator[None]:
    """Hold the lock file exclusively; `waiting` is called once if another process holds it."""
    from filelock import lock_descriptor

    with path.open("a+b") as file:
        if not try_lock(file.fileno()):
            waiting()
            lock_descriptor(file.fileno(), poll_interval=POLL_SECONDS)
        yield


def try_lock(handle: int) -> bool:
    """Lock an open file until it is closed; False: another process holds it."""
    from filelock import lock_descriptor  # takes long to import, for files that are only read

    return lock_descriptor(handle, blocking=False)


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
    """Flush a file's content, or a folder's names, to disk."""
    if os.name == "nt" and path.is_dir():
        return
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def check_parent(path: Path) -> None:
    """Raise for a file in a missing folder, before anything is computed for it."""
    if not path.absolute().parent.is_dir():
        raise FileError(f"{path}: there is no folder {path.absolute().parent}")


# Cache folders: the folder in VITLAB_<KIND>, then the cache folder of the user.


def variable(kind: str) -> str:
    """Environment variable of the folder: VITLAB_DATA, VITLAB_WEIGHTS."""
    return f"VITLAB_{kind.upper()}"


def homes(kind: str) -> tuple[Path, ...]:
    """Folders that are searched for files of this kind, in order."""
    named, cache = os.environ.get(variable(kind)), user_cache(kind)
    return (Path(named).expanduser().absolute(), cache) if named else (cache,)


def user_cache(kind: str) -> Path:
    """Default cache folder of the user."""
    named = os.environ.get("XDG_CACHE_HOME")
    try:
        cache = Path(named) if named else Path.home() / ".cache"
    except RuntimeError:
        raise DataError(
            f"this user has no home folder; set {variable(kind)} or XDG_CACHE_HOME to a folder "
            f"for {kind}"
        ) from None
    return cache / "vitlab" / kind


def writable_home(kind: str) -> Path:
    """First of the homes that is writable, created if missing."""
    for home in homes(kind):
        try:
            home.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(home, os.W_OK | os.X_OK):
            return home
    tried = ", ".join(map(str, homes(kind)))
    raise DataError(
        f"no folder for {kind} can be written: {tried}; set {variable(kind)} to one that can"
    )


# Verification of a file: its size, and a digest written `md5:…` or `sha256:…`.


def check_file(path: Path, *, size: int | None, checksum: str | None) -> None:
    """Raise unless the file has this size and checksum, where they are known.

    A digest of which only the first digits are published is compared on those.
    """
    found = path.stat().st_size
    if size is not None and found != size:
        raise DataError(f"{path.name} has {found} bytes instead of {size}")
    if checksum is None:
        return
    kind, _, expected = checksum.partition(":")
    digest = file_digest(path, kind)
    if not (expected and digest.startswith(expected)):
        raise DataError(f"{path.name} has {kind} {digest} instead of {expected}")


def file_digest(path: Path, kind: str) -> str:
    """Hexadecimal digest of a file's content."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, lambda: hashlib.new(kind, usedforsecurity=False))
    return digest.hexdigest()
