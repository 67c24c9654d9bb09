"""Whether a file is the one it should be: its size, and a digest written `md5:…` or `sha256:…`."""

import hashlib
from pathlib import Path

from vitlab.errors import DataError

BLOCK = 1 << 20
"""Bytes read at once."""


def check_file(path: Path, *, size: int | None, checksum: str | None) -> None:
    """Raise unless the file has this size and checksum, where they are known.

    A publisher who tells only how the digest begins is taken at that.
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
    """The hexadecimal digest of a file's content."""
    digest = hashlib.new(kind, usedforsecurity=False)
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()
