"""Files from the hub: checked against the digests it states, in a folder that appears whole."""

import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vitlab.errors import FileError, HubError
from vitlab.files import staged_folder

BLOCK = 1 << 20
"""Bytes read at once."""


@contextmanager
def staged(output: Path | None) -> Iterator[Path | None]:
    """A folder that becomes `output` when everything went well; None stays None."""
    if output is None:
        yield None
        return
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise FileError(f"{output} exists; choose another --output, or remove it")
    parent = output.absolute().parent
    if not parent.is_dir():
        raise FileError(f"{output}: folder {parent} does not exist")
    with staged_folder(output) as folder:
        yield folder
        shutil.rmtree(folder / ".cache", ignore_errors=True)  # notes of the hub's own client
        folder.chmod(0o777 & ~_umask())
        if output.exists():
            output.rmdir()
        os.replace(folder, output)


def check_content(path: Path, listed: Any, *, address: str) -> None:
    """Raise, and remove the file, unless it is what the listing of its repository says."""
    expected, found = _digests(path, listed)
    if expected is None or found == expected:
        return
    path.resolve().unlink(missing_ok=True)
    path.unlink(missing_ok=True)
    raise HubError(
        f"{address}: {path.name} came damaged: its digest is {found} instead of {expected}; "
        f"pull again"
    )


def _digests(path: Path, listed: Any) -> tuple[str | None, str]:
    """The stated digest and the file's own: sha256 of large files, git's of small ones."""
    large = getattr(listed, "lfs", None)
    if large is not None:
        return large["sha256"], _digest(path, hashlib.sha256())
    header = f"blob {path.stat().st_size}\0".encode()
    return listed.blob_id, _digest(path, hashlib.sha1(header, usedforsecurity=False))


def _digest(path: Path, digest: Any) -> str:
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return str(digest.hexdigest())


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
