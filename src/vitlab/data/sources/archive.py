"""Zip and tar files of images: unpacked once into the user's cache, then read as a folder."""

import hashlib
import lzma
import os
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO

from vitlab.errors import DataError
from vitlab.images.find import FOREIGN, HIDDEN, SUFFIXES
from vitlab.io.files import locked, staged_folder, writable_home

ENDINGS = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
VALID = f"valid: a sound file of images that ends in {', '.join(ENDINGS)}"
UNPACKED = "unpacked"
"""Folder in the home of data."""
ROOM, RATIO = 1 << 30, 20
"""Bytes that every archive may unpack to, and further ones for each of its own: images are
compressed already."""
DAMAGES = (zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError, EOFError, OSError)


def is_archive(path: Path) -> bool:
    """True if the name ends like that of an archive, and it is a file."""
    return path.name.lower().endswith(ENDINGS) and path.is_file()


def unpack(path: Path) -> Path:
    """Folder with the images of an archive; unpacked unless that was done before."""
    home = writable_home("data") / UNPACKED
    home.mkdir(exist_ok=True)
    target = home / f"{path.name.split('.')[0]}-{_version(path)}"
    with locked(home / f"{target.name}.lock", lambda: None):
        if not target.is_dir():
            with staged_folder(target) as folder:
                _extract(path, folder / "images")
                os.replace(folder / "images", target)
    return _inner(target)


def _version(path: Path) -> str:
    """Digest of place, size and time of the file."""
    status = path.stat()
    text = f"{path.resolve()}\0{status.st_size}\0{status.st_mtime_ns}"
    return hashlib.blake2b(text.encode(errors="surrogateescape"), digest_size=8).hexdigest()


def _inner(folder: Path) -> Path:
    """The folder that holds more than one other: archives often have one around all."""
    entries = list(folder.iterdir())
    alone = len(entries) == 1 and entries[0].is_dir() and entries[0].name != "train"
    return _inner(entries[0]) if alone and any(e.is_dir() for e in entries[0].iterdir()) else folder


def _extract(path: Path, folder: Path) -> None:
    """Write the image files of an archive: no links, nothing hidden, nothing outside."""
    folder.mkdir()
    left = ROOM + RATIO * path.stat().st_size
    try:
        for name, size, file in _members(path):
            left -= size
            if left < 0:
                raise DataError(f"{path}: unpacks to more than {RATIO} times its size; {VALID}")
            target = folder / _relative(name, path)
            target.parent.mkdir(parents=True, exist_ok=True)
            with file, target.open("xb") as out:
                shutil.copyfileobj(file, out, 1 << 20)
    except (*DAMAGES, RuntimeError, NotImplementedError) as error:  # such as a password
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DataError(f"{path}: cannot be unpacked ({reason}); {VALID}") from error
    if not any(folder.iterdir()):
        raise DataError(f"{path}: no image files in it; {VALID}")


def _members(path: Path) -> Iterator[tuple[str, int, IO[bytes]]]:
    """Name, size and content of each image file, in the order of the archive."""
    if path.name.lower().endswith(".zip"):
        with zipfile.ZipFile(path) as archive:
            for entry in archive.infolist():
                if not entry.is_dir() and _wanted(entry.filename):
                    yield entry.filename, entry.file_size, archive.open(entry)
        return
    with tarfile.open(path) as packed:
        for member in packed:
            content = packed.extractfile(member) if member.isfile() else None
            if content is not None and _wanted(member.name):
                yield member.name, member.size, content


def _wanted(name: str) -> bool:
    path = PurePosixPath(name.replace("\\", "/"))
    hidden = any(part.startswith(HIDDEN) and part not in (".", "..") for part in path.parts)
    return not hidden and (path.suffix.lower() in SUFFIXES or path.suffix.lower() in FOREIGN)


def _relative(name: str, archive: Path) -> Path:
    """Path below the folder; raises for one that leads elsewhere."""
    path = PurePosixPath(name.replace("\\", "/"))
    if path.is_absolute() or ".." in path.parts or ":" in path.parts[0]:
        raise DataError(f"{archive}: it holds {name!r}, outside of its folder; {VALID}")
    return Path(*path.parts)
