"""Download a dataset: mirror after mirror, verified, then renamed into place atomically."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from vitlab.data.datasets import Dataset, Mirror
from vitlab.errors import DataError
from vitlab.io.download import NO_ROOM, SILENT, Progress, fetch_once
from vitlab.io.files import sync


@dataclass(frozen=True, kw_only=True, slots=True)
class Fetched:
    """Location of a dataset, and the mirror it came from; none if it was there already."""

    path: Path
    mirror: str | None


def fetch(dataset: Dataset, progress: Progress = SILENT) -> Fetched:
    """Get a dataset unless a good copy exists; concurrent processes fetch it once."""
    return fetch_once(
        "data",
        dataset.name,
        good_copy=lambda: _good_copy(dataset, progress),
        get=lambda home, work: _fetch(dataset, home, work, progress),
        progress=progress,
    )


def _good_copy(dataset: Dataset, progress: Progress) -> Fetched | None:
    """Dataset that is there already; a downloaded one is verified to the last byte."""
    found = dataset.find()
    if found is None:
        return None
    if found.name != dataset.name:
        return Fetched(path=found, mirror=None)
    try:
        dataset.verify(found)
    except DataError as error:
        progress.note(f"{found}: {error}; fetching it again")
        return None
    return Fetched(path=found, mirror=None)


def _fetch(dataset: Dataset, home: Path, work: Path, progress: Progress) -> Fetched:
    failures = []
    for mirror in dataset.mirrors:
        try:
            ready = _deliver(dataset, mirror, work, progress)
        except (DataError, OSError) as error:
            if isinstance(error, OSError) and error.errno in NO_ROOM:
                raise DataError(f"{home}: no room for {dataset.name} ({error.strerror})") from error
            failures.append(f"{mirror.name}: {error}")
            progress.note(f"{dataset.name}: {failures[-1]}")
            continue
        _land(ready, home / dataset.name)
        shutil.rmtree(work)
        return Fetched(path=home / dataset.name, mirror=mirror.name)
    raise DataError(f"{dataset.name} could not be fetched: {'; '.join(failures)}")


def _deliver(dataset: Dataset, mirror: Mirror, work: Path, progress: Progress) -> Path:
    """A folder with every file, verified."""
    progress.note(f"{dataset.name}: from {mirror.name}")
    ready = work / "ready"
    shutil.rmtree(ready, ignore_errors=True)
    ready.mkdir()
    mirror.deliver(work, ready, progress)
    dataset.verify(ready)
    return ready


def _land(ready: Path, target: Path) -> None:
    """Move a finished folder into place; in an existing one, its files are replaced."""
    for path in ready.iterdir():
        sync(path)
    sync(ready)
    if target.is_dir():
        for path in ready.iterdir():
            path.replace(target / path.name)
        sync(target)
    else:
        ready.rename(target)
    sync(target.parent)
