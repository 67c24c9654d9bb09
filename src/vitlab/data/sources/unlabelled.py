"""Data without labels: any data, and also folders of images without classes."""

import os
from collections.abc import Sequence
from pathlib import Path

import torch

from vitlab.data.datasets import DataSource, open_data
from vitlab.data.images import FileSet
from vitlab.data.sources.folder import TRAIN, has_splits, image_files, subfolders
from vitlab.errors import DataError
from vitlab.images.find import ENDINGS
from vitlab.images.statistics import look
from vitlab.registry import DATASETS

NO_LABEL = "unlabelled"
"""Placeholder for classes."""


def open_unlabelled(
    spec: str | os.PathLike[str], *, download: bool = False, channels: int | None = None
) -> DataSource:
    """Same as `open_data`; for a folder without class folders, all its images."""
    root = Path(os.fspath(spec)).expanduser()
    if os.fspath(spec) in DATASETS or not root.is_dir():
        return open_data(spec, download=download, channels=channels)
    images = root / TRAIN if has_splits(root) else root
    if len(subfolders(images)) > 1:
        return open_data(spec, download=download, channels=channels)
    return _source(root, images, channels)


def _source(root: Path, folder: Path, channels: int | None) -> DataSource:
    paths = tuple(Path(file) for file in sorted(image_files(folder)))
    if not paths:
        raise DataError(f"{folder} holds no image files; valid endings: {ENDINGS}")
    seen = look(paths, lambda: paths, channels=channels)
    return DataSource(
        name=root.absolute().name,
        labels=(NO_LABEL,),
        channels=seen.channels,
        image_size=None,
        open_train=lambda: _all_of(paths),
        open_test=None,
        mean=seen.mean,
        std=seen.std,
        white=seen.white,
        notes=() if seen.note is None else (seen.note,),
    )


def _all_of(paths: Sequence[Path]) -> FileSet:
    return FileSet(paths=tuple(paths), labels=torch.zeros(len(paths), dtype=torch.int64))
