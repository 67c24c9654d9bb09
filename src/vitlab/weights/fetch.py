"""Download a published checkpoint: resumed, verified, pinned, then renamed into place.

It has its own folder with `fetched.json`, which keeps the full sha256 of the download: if none is
published, this reveals later changes.
"""

import os
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from vitlab.errors import DataError, WeightsError
from vitlab.io.download import NO_ROOM, SILENT, Progress, RemoteFile, download, fetch_once
from vitlab.io.files import file_digest, homes, sync, write_json
from vitlab.weights.reading import read_json
from vitlab.weights.resolve import Checkpoint, named

KIND, RECORD = "weights", "fetched.json"
MIRROR = "VITLAB_MIRROR"


@dataclass(frozen=True, kw_only=True, slots=True)
class Fetched:
    """Path of a checkpoint, its sha256, and whether it was downloaded just now."""

    path: Path
    sha256: str
    new: bool


def find(checkpoint: Checkpoint) -> Path | None:
    """File of a checkpoint that was fetched before."""
    for home in homes(KIND):
        path = home / checkpoint.name / checkpoint.remote.name
        if path.is_file() and (path.parent / RECORD).is_file():
            return path
    return None


def require(checkpoint: Checkpoint) -> Path:
    """File of a checkpoint; if missing, raises with the command that fetches it."""
    found = find(checkpoint)
    if found is None:
        raise WeightsError(
            f"{checkpoint.name} has not been fetched; get it: vitlab weights fetch "
            f"{checkpoint.name}"
        )
    recorded, size = read_record(found).get("bytes"), found.stat().st_size
    if recorded != size:
        raise WeightsError(
            f"{found} has {size} bytes instead of {recorded}; get it again: "
            f"vitlab weights fetch {checkpoint.name}"
        )
    return found


def fetch_named(model: str | os.PathLike[str] | None, progress: Progress = SILENT) -> None:
    """Get the weights of a published name unless they are here; anything else is left alone."""
    found = None if model is None else named(model)
    if found is not None and find(found) is None:
        fetch(found, progress)


def read_record(path: Path) -> dict[str, Any]:
    """Record of a downloaded file."""
    return read_json(path.parent / RECORD)


def fetch(checkpoint: Checkpoint, progress: Progress = SILENT) -> Fetched:
    """Get a checkpoint unless a good copy exists; concurrent processes fetch it once."""
    return fetch_once(
        KIND,
        checkpoint.name,
        good_copy=lambda: _good_copy(checkpoint, progress),
        get=lambda home, work: _fetch(checkpoint, home, work, progress),
        progress=progress,
    )


def _good_copy(checkpoint: Checkpoint, progress: Progress) -> Fetched | None:
    """Existing copy, verified to the last byte."""
    path = find(checkpoint)
    if path is None:
        return None
    recorded, found = read_record(path).get("sha256"), file_digest(path, "sha256")
    if found == recorded:
        return Fetched(path=path, sha256=found, new=False)
    progress.note(f"{path} has sha256 {found} instead of {recorded}; fetching it again")
    return None


def _fetch(checkpoint: Checkpoint, home: Path, work: Path, progress: Progress) -> Fetched:
    target, address = home / checkpoint.name, checkpoint.url
    try:
        remote = _mirrored(checkpoint.remote)
        address = remote.url
        progress.note(f"{checkpoint.name}: from {remote.host}")
        path = download(remote, work, progress)
        digest = _verified(checkpoint, path, target)
    except (DataError, WeightsError, OSError) as error:
        _clear(work)
        raise WeightsError(_failure(checkpoint, address, home, error)) from error
    _land(path, target, _record(checkpoint, address, path, digest))
    return Fetched(path=target / path.name, sha256=digest, new=True)


def _mirrored(remote: RemoteFile) -> RemoteFile:
    """The file below the address in VITLAB_MIRROR: its publisher's host and path follow that."""
    mirror = os.environ.get(MIRROR)
    if not mirror:
        return remote
    parts = urlsplit(remote.url)
    return replace(remote, url=f"{mirror.rstrip('/')}/{parts.netloc}{parts.path}")


def _verified(checkpoint: Checkpoint, path: Path, target: Path) -> str:
    """sha256 of the download, if it is the requested file; else it is deleted."""
    try:
        return _digest(checkpoint, path, target)
    except WeightsError:
        path.unlink()
        raise


def _digest(checkpoint: Checkpoint, path: Path, target: Path) -> str:
    size = path.stat().st_size
    if not checkpoint.has_size(size):
        raise WeightsError(f"{path.name} has {size} bytes instead of {checkpoint.size}")
    from vitlab.weights.container import open_weights
    from vitlab.weights.formats.detect import recognise

    file = open_weights(path)
    try:
        recognise(file.shapes, None)
    finally:
        file.close()
    digest, record = file_digest(path, "sha256"), target / RECORD
    pinned = read_json(record) if record.is_file() else {"sha256": digest}
    if digest != pinned.get("sha256"):
        raise WeightsError(
            f"{path.name} has changed: sha256 {digest}, but {pinned.get('sha256')} when it was "
            f"first fetched ({pinned.get('fetched')}); to take it nevertheless, delete {target}"
        )
    return digest


def _record(checkpoint: Checkpoint, address: str, path: Path, digest: str) -> dict[str, Any]:
    return {
        "name": checkpoint.name,
        "url": address,
        "bytes": path.stat().st_size,
        "sha256": digest,
        "sha256_published": checkpoint.sha256,
        "licence": checkpoint.licence,
        "fetched": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _land(path: Path, target: Path, record: dict[str, Any]) -> None:
    """Move the folder of a verified file into place; in an existing one, replace its file."""
    work = path.parent
    write_json(work / RECORD, record)
    sync(work)
    if not target.exists():
        work.rename(target)
    else:
        path.replace(target / path.name)
        (work / RECORD).replace(target / RECORD)
        _clear(work)
    sync(target.parent)


def _clear(work: Path) -> None:
    """Remove everything except a partial download that can be resumed."""
    if not any(work.iterdir()):
        work.rmdir()


def _failure(checkpoint: Checkpoint, address: str, home: Path, error: Exception) -> str:
    if isinstance(error, OSError) and error.errno in NO_ROOM:
        return f"{home}: no room for {checkpoint.name} ({error.strerror})"
    return (
        f"{checkpoint.name} could not be fetched from {address}: {error}; "
        "a file that was downloaded elsewhere can be passed by its path instead of the name"
    )
