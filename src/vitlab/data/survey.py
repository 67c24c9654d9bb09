"""Survey of a set, reading every file once: unreadable files and duplicates.

It takes as long as an epoch of decoding, so a run stores the result for resuming.
"""

import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path

import torch
from jaxtyping import Int
from torch import Tensor

from vitlab.data.duplicates import Watch, compare_files
from vitlab.data.images import FileSet, Survey, one_of
from vitlab.errors import DataError

_watched: ContextVar[Watch | None] = ContextVar("watched", default=None)
_recalled: ContextVar[Survey | None] = ContextVar("recalled", default=None)


@contextmanager
def recalling(survey: Survey | None) -> Iterator[None]:
    """Within the block, files must match this survey, and are not read again."""
    token = _recalled.set(survey)
    try:
        yield
    finally:
        _recalled.reset(token)


@contextmanager
def looking(watch: Watch | None) -> Iterator[None]:
    """Within the block, report the progress of reading files to `watch`."""
    token = _watched.set(watch)
    try:
        yield
    finally:
        _watched.reset(token)


def surveyed(data: FileSet) -> FileSet:
    """Readable files of a set, with the survey."""
    if data.survey is not None or not data.paths:
        return data
    folder = os.path.commonpath([os.path.abspath(path.parent) for path in data.paths])
    names = _names(data.paths, folder)
    fingerprint, order = _fingerprint(names, data.paths), _order(names, data.labels)
    known = _recalled.get()
    if known is None:
        known = replace(_look(data.paths, names, fingerprint), order=order)
    known = replace(known, folder=folder)
    if known.fingerprint != fingerprint:
        raise DataError(f"{folder} changed since the run began: {_changed(known, len(names))}")
    if known.order not in ("", order):
        raise DataError(
            f"{folder} changed since the run began: the same files in another order or with other "
            f"labels; bring it back as it was, or begin another run"
        )
    good = torch.tensor([i for i, name in enumerate(names) if name not in known.broken])
    _check_classes(data, good, known)
    return replace(data.subset(good), survey=known)


def known_groups(data: FileSet) -> Int[Tensor, " N"]:
    """Group index for each file of a surveyed set, the same for duplicates."""
    assert data.survey is not None
    groups = {name: same[0] for same in data.survey.duplicates for name in same}
    numbers: dict[str, int] = {}
    return torch.tensor(
        [
            numbers.setdefault(groups.get(name, name), len(numbers))
            for name in _names(data.paths, data.survey.folder)
        ],
        dtype=torch.int64,
    )


def check_share(survey: Survey, max_broken: float) -> None:
    """Raise for a set with more than this share of unreadable files."""
    if len(survey.broken) > max_broken * survey.files:
        raise DataError(
            f"{len(survey.broken)} of {survey.files} images cannot be read, more than the "
            f"{max_broken:.0%} allowed (max_broken); {one_of(survey.broken_paths)}"
        )


def _changed(known: Survey, files: int) -> str:
    found = f"{files} files instead of {known.files}"
    if files == known.files:
        found = f"{files} files as before, but with other names or sizes"
    return f"{found}; bring it back as it was, or begin another run"


def _look(paths: Sequence[Path], names: Sequence[str], fingerprint: str) -> Survey:
    watch = _watched.get()
    groups, reasons = compare_files(paths) if watch is None else compare_files(paths, watch)
    members: dict[int, list[str]] = {}
    for i, group in enumerate(groups.tolist()):
        if i not in reasons:
            members.setdefault(group, []).append(names[i])
    return Survey(
        folder="",
        files=len(paths),
        fingerprint=fingerprint,
        duplicates=tuple(tuple(same) for same in members.values() if len(same) > 1),
        broken={names[i]: reason for i, reason in reasons.items()},
    )


def _names(paths: Sequence[Path], folder: str) -> list[str]:
    start = len(os.path.join(folder, ""))
    return [os.path.abspath(path)[start:] for path in paths]


def _fingerprint(names: Sequence[str], paths: Sequence[Path]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for name, path in sorted(zip(names, paths, strict=True)):
        try:
            size = path.stat().st_size
        except OSError:
            size = -1
        digest.update(os.fsencode(name) + b"\0%d\n" % size)
    return digest.hexdigest()


def _order(names: Sequence[str], labels: Tensor) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for name in names:
        digest.update(os.fsencode(name) + b"\n")
    digest.update(labels.numpy().tobytes())
    return digest.hexdigest()


def _check_classes(data: FileSet, good: Tensor, survey: Survey) -> None:
    """Raise if a class lost all its images: the model would never see it."""
    if not len(good):
        one = one_of(survey.broken_paths)
        raise DataError(f"none of the {len(data)} images in {survey.folder} can be read; {one}")
    if data.labels.ndim > 1:
        return
    left = set(data.labels[good].tolist())
    lost = next((i for i, label in enumerate(data.labels.tolist()) if label not in left), None)
    if lost is not None:
        reason = survey.broken_paths[Path(os.path.abspath(data.paths[lost]))]
        raise DataError(
            f"none of the images of one class can be read, such as {data.paths[lost]}: {reason}"
        )
