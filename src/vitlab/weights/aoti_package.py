"""AOTInductor packages, inspected before torch opens them: zip archives with machine code.

torch unpickles some parts of an archive, and compiles others, for any use of it. So an archive must
have the layout of `vitlab export --format aoti` and nothing else. The rest is machine code: it is
run only if compiled by this user's `vitlab export`, or on request.
"""

import json
import os
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath

from vitlab.errors import DataError, WeightsError
from vitlab.io.cache import homes, writable_home
from vitlab.io.download import file_digest

VARIABLE = "VITLAB_RUN_CODE"
KIND = "compiled"
"""Folder of the digests of packages that were compiled here."""
CODE = "data/aotinductor/model/"
FRAME = ("archive_format", "archive_version", "byteorder", "version", ".data/", ".format_version")
"""Further names, below the archive's own folder, that hold no more than a few bytes of text."""
LIBRARIES = (".so", ".pyd", ".dll")
MOST_PARTS, MOST_METADATA = 1_000, 16 << 20
VALID = "valid: what `vitlab export --format aoti` writes"


def read_package(path: Path) -> Mapping[str, str]:
    """Metadata of a package; raises WeightsError for anything else, without loading it."""
    try:
        with zipfile.ZipFile(path) as archive:
            library = _library(archive, path.stat().st_size)
            return _metadata(archive, library)
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, EOFError) as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise WeightsError(f"{path}: not an AOTInductor package ({reason}); {VALID}") from error


def _library(archive: zipfile.ZipFile, size: int) -> str:
    """Check the names and sizes of all parts; return the name of the compiled model."""
    parts = archive.infolist()
    if len(parts) > MOST_PARTS:
        raise WeightsError(f"{len(parts):,} parts")
    for part in parts:
        _check_name(part.filename)
        if part.compress_type != zipfile.ZIP_STORED:
            raise WeightsError(f"{part.filename} is compressed")
    unpacked = sum(part.file_size for part in parts)
    if unpacked > size:
        raise WeightsError(f"{unpacked:,} bytes of parts in a file of {size:,}")
    found = [part.filename for part in parts if part.filename.endswith(LIBRARIES)]
    if len(found) != 1:
        raise WeightsError(f"{len(found)} compiled models")
    return found[0]


def _check_name(name: str) -> None:
    """Raise for paths that lead elsewhere, and for parts that torch unpickles."""
    inner = name.partition("/")[2]
    if name.startswith("/") or "\\" in name or ".." in PurePosixPath(name).parts:
        raise WeightsError(f"a part named {name!r}")
    flat = inner.startswith(CODE) and "/" not in inner.removeprefix(CODE)
    if not (flat or inner.startswith(FRAME)) or inner.endswith((".pt", ".pkl", ".pth")):
        raise WeightsError(f"it holds {inner or name}, and reading that could run code")


def _metadata(archive: zipfile.ZipFile, library: str) -> dict[str, str]:
    name = f"{os.path.splitext(library)[0]}_metadata.json"
    if name not in archive.namelist():
        return {}
    if archive.getinfo(name).file_size > MOST_METADATA:
        raise WeightsError(f"metadata of more than {MOST_METADATA:,} bytes")
    try:
        content = json.loads(archive.read(name))
    except RecursionError:
        raise WeightsError("metadata nested too deeply") from None
    if not isinstance(content, dict) or not all(isinstance(v, str) for v in content.values()):
        raise WeightsError("metadata that is no table of text")
    return content


def check_trusted(path: Path) -> None:
    """Raise for machine code that this user did not compile, unless VITLAB_RUN_CODE is 1."""
    told = os.environ.get(VARIABLE, "0")
    if told not in ("0", "1", ""):
        raise WeightsError(f"{VARIABLE} is {told!r}; valid: 0 or 1")
    if told == "1":
        return
    digest = file_digest(path, "sha256")
    with suppress(DataError):  # a user without a home
        if any((home / digest).is_file() for home in homes(KIND)):
            return
    raise WeightsError(
        f"{path} is machine code that `vitlab export` did not compile for this user; "
        f"valid: a file of your own, or {VARIABLE}=1 if you trust its origin"
    )


def trust(path: Path) -> None:
    """Record a package that was just compiled here; without a writable home, do nothing."""
    with suppress(DataError, OSError):
        (writable_home(KIND) / file_digest(path, "sha256")).touch()
