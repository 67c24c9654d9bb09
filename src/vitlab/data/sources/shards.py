"""Images in tar shards, Parquet and Arrow files, on a disk or in an object store."""

from collections.abc import Sequence
from functools import cache
from pathlib import PurePosixPath

import numpy as np
import torch
from numpy.typing import NDArray

from vitlab.data.datasets import DataSource, SurveyFiles, without_images
from vitlab.data.duplicates import check_readable
from vitlab.data.images import ImageSet, IndexedSet, Labels
from vitlab.data.shards.index import UNLABELLED, Index, shard_names
from vitlab.data.shards.layout import Layout, open_index
from vitlab.data.sources.folder import NO_LABEL, SPLIT_SEED, TEST_SHARE, check_alike
from vitlab.data.split import hold_out, is_indexed_alone, survey_files
from vitlab.errors import DataError
from vitlab.images.open import StoredImage
from vitlab.images.statistics import read_settings
from vitlab.wordnet import shown_class

DIGITS = 12
"""Width to which numbers are filled up, so that they are in order as text."""


def open_shards(
    layout: Layout,
    *,
    channels: int | None = None,
    survey: SurveyFiles = survey_files,
    labelled: bool = True,
) -> DataSource:
    """Images of shards or tables; without test files, a fifth of them is split off."""
    index = open_index(layout)
    if labelled:
        _check_labels(layout, index)
    train, *rest = (images_of(index, split, labelled=labelled) for split in index.header.splits)
    test = rest[0] if rest else None
    check_readable(layout.spec, train.sources)
    if test is not None:
        check_readable(layout.spec, test.sources)

    @cache
    def split() -> tuple[ImageSet, ImageSet]:
        return hold_out(survey(train), share=TEST_SHARE, seed=SPLIT_SEED)

    divided = labelled and test is None

    def open_train() -> ImageSet:
        return split()[0] if divided else train

    seen = read_settings(train.sources, lambda: _sources(open_train()), channels=channels)
    return DataSource(
        name=PurePosixPath(layout.spec.partition("#")[0]).name,
        labels=tuple(map(shown_class, index.header.labels)) if labelled else (NO_LABEL,),
        channels=seen.channels,
        image_size=None,
        open_train=open_train,
        open_test=(lambda: split()[1]) if divided else None if test is None else (lambda: test),
        mean=seen.mean,
        std=seen.std,
        task=index.header.task or "single-label",
        white=seen.white,
        divided=divided,
        tested=None if test is None else len(test),
        unjudged=None if test is None else _untested(layout, train, test),
        notes=(*_notes(layout, index), *([seen.note] if seen.note else [])),
        survey=survey,
    )


def images_of(index: Index, split: str, *, labelled: bool = True) -> IndexedSet:
    """Images of a split, by class and name as in a folder; very many in the order of the files."""
    start, end = index.header.splits[split]
    numbers = np.arange(start, end)
    labels = _labels(index, start, end) if labelled else torch.zeros(end - start, dtype=torch.int64)
    images = IndexedSet(index=index, numbers=torch.from_numpy(numbers), labels=labels)
    if is_indexed_alone(images):
        return images
    return images.subset(torch.from_numpy(_by_name(index, numbers, labels)))


def _labels(index: Index, start: int, end: int) -> Labels:
    labels = torch.from_numpy(index.label[start:end])
    return labels.long() if index.header.task == "single-label" else labels


def _by_name(index: Index, numbers: NDArray[np.int64], labels: Labels) -> NDArray[np.int64]:
    names = [name.zfill(DIGITS) if name.isdigit() else name for name in index.inner_names(numbers)]
    classes = labels.numpy() if labels.ndim == 1 else np.zeros(len(names), np.int64)
    return np.lexsort((np.array(names, np.bytes_), classes))


def _sources(images: ImageSet) -> Sequence[StoredImage]:
    assert isinstance(images, IndexedSet)
    return images.sources


def _check_labels(layout: Layout, index: Index) -> None:
    """Raise for samples without a label, a single class, or names that people take for one."""
    if index.header.task != "single-label":
        _ = index.label  # raises if there are none
        return
    if len(index.header.labels) < 2:
        raise DataError(f"{layout.spec} holds one class, {index.header.labels[0]!r}; valid: 2")
    check_alike(layout.spec, index.header.labels)
    lacking = np.flatnonzero(index.label == UNLABELLED)
    if len(lacking):
        raise DataError(
            f"{layout.spec}: {len(lacking):,} samples without a label; one is "
            f"{index.name(int(lacking[0]))}"
        )


def _untested(layout: Layout, train: IndexedSet, test: IndexedSet) -> str | None:
    """Classes without test images."""
    names = train.index.header.labels
    if train.index.header.task != "single-label":
        return None
    known, tested = (np.bincount(each.labels, minlength=len(names)) for each in (train, test))
    absent = np.flatnonzero((known > 0) & (tested == 0))
    return without_images(f"the test split of {layout.spec}", [names[i] for i in absent])


def _notes(layout: Layout, index: Index) -> list[str]:
    missing = set(index.header.files) - set(layout.files.names)
    notes = [f"Files of {name} are not used" for name in layout.unused]
    if missing:
        notes.append(
            f"{len(missing):,} files of the index are missing: {shard_names(sorted(missing))}"
        )
    for name, reason in index.header.damaged.items():
        notes.append(f"{name} was not read to its end: {reason}")
    return notes
