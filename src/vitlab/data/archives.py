"""Members of archives, one by one: nothing is unpacked that was not asked for by name and size."""

import gzip
import lzma
import shutil
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO

from vitlab.errors import DataError

DAMAGED = (tarfile.TarError, EOFError, gzip.BadGzipFile, lzma.LZMAError, zlib.error)
DEB_START = b"!<arch>\n"
DEB_HEADER = 60
"""Bytes before each member: name 16, date 12, owner 6, group 6, mode 8, size 10, end 2."""


@contextmanager
def readable(name: str) -> Iterator[None]:
    """Turn what decompressors raise into one line."""
    try:
        yield
    except DAMAGED as error:
        raise DataError(f"{name} is damaged ({error or type(error).__name__})") from error


def unpack(archive: Path, sizes: Mapping[str, int], into: Path) -> None:
    """Write the members of these base names, each exactly so large, into a folder."""
    missing = set(sizes)
    with readable(archive.name), tarfile.open(archive, "r:*") as tar:
        for name, packed in members(tar, sizes):
            with (into / name).open("wb") as file:
                shutil.copyfileobj(packed, file, 1 << 20)
            missing.discard(name)
    if missing:
        raise DataError(f"{archive.name} does not hold {', '.join(sorted(missing))}")


def members(tar: tarfile.TarFile, sizes: Mapping[str, int]) -> Iterator[tuple[str, IO[bytes]]]:
    """Regular files with these base names, in the archive's order; another size is an error."""
    for member in tar:
        name = PurePosixPath(member.name).name
        if name not in sizes or not member.isreg():
            continue
        if member.size != sizes[name]:
            raise DataError(f"{name} has {member.size} bytes instead of {sizes[name]}")
        file = tar.extractfile(member)
        assert file is not None
        yield name, file


def gunzip(source: Path, target: Path, *, limit: int) -> None:
    """Decompress one file; more than `limit` bytes is an error, not a full disk."""
    with readable(source.name), gzip.open(source) as packed, target.open("wb") as plain:
        while block := packed.read(1 << 20):
            if plain.tell() + len(block) > limit:
                raise DataError(f"{source.name} holds more than {limit} bytes")
            plain.write(block)


@contextmanager
def deb_data(package: Path) -> Iterator[tarfile.TarFile]:
    """The files of a Debian package: an `ar` archive, in it `data.tar` with some compression."""
    with readable(package.name), package.open("rb") as file:
        if file.read(len(DEB_START)) != DEB_START:
            raise DataError(f"{package.name} is not a Debian package")
        while header := file.read(DEB_HEADER):
            name = header[:16].decode("ascii", "replace").strip().rstrip("/")
            length = header[48:58].decode("ascii", "replace").strip()
            if len(header) != DEB_HEADER or not length.isdecimal():
                raise DataError(f"{package.name} is damaged (a member without a size)")
            if name.startswith("data.tar"):
                with tarfile.open(fileobj=file, mode="r|*") as tar:
                    yield tar
                return
            file.seek(int(length) + int(length) % 2, 1)
    raise DataError(f"{package.name} does not hold data.tar")
