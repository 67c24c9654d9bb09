"""Files that are written whole or not at all."""

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from vitlab.errors import FileError


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file that takes the place of `path` when it is complete, and never otherwise."""
    try:
        handle, name = tempfile.mkstemp(dir=path.absolute().parent, prefix=f".{path.name}.")
    except OSError as error:
        raise FileError(f"{path}: cannot be written ({error.strerror})") from error
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o666 & ~_umask())
        os.replace(name, path)
    except BaseException as error:
        Path(name).unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise FileError(f"{path}: cannot be written ({error.strerror})") from error
        raise


def write_json(path: Path, content: Any) -> None:
    """Write JSON that people can read, in place of what was there."""
    with replacing(path) as file:
        file.write(json.dumps(content, indent=2).encode() + b"\n")


def write_files(folder: Path, contents: Mapping[str, bytes]) -> tuple[Path, ...]:
    """Write files into a folder, which is made where it is missing; tell where they are."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"{folder}: cannot be made ({error.strerror})") from error
    for name, content in contents.items():
        with replacing(folder / name) as file:
            file.write(content)
    return tuple(folder / name for name in contents)


def sync(path: Path) -> None:
    """Have a written file on the disk before anything relies on it."""
    with path.open("r+b") as file:
        os.fsync(file.fileno())


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def check_parent(path: Path) -> None:
    """Refuse a file in a folder that is not there, before anything is computed for it."""
    if not path.absolute().parent.is_dir():
        raise FileError(f"{path}: there is no folder {path.absolute().parent}")
