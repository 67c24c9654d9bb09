"""Data by halves of its classes: features are learnt from one half and judged by the other."""

from dataclasses import replace

import torch

from vitlab.data.datasets import DataSource
from vitlab.data.images import ImageSet
from vitlab.errors import DataError
from vitlab.registry import DATASETS

LEARNT, OTHERS = ":first-classes", ":last-classes"
"""Endings of the names that the halves have while an experiment runs."""

SHOTS = 5
"""Images of a class that a linear classifier gets."""


def halve(data: str, source: DataSource) -> DataSource:
    """Make the halves known by name; the first is returned."""
    count = len(source.labels)
    if count < 4:
        raise DataError(f"{source.name} has {count} classes; valid: 4 or more, to learn from half")
    first, last = part(source, 0, count // 2), part(source, count // 2, count)
    fewest, name = min(zip(images_of_classes(last), last.labels, strict=True))
    if fewest < SHOTS:
        raise DataError(
            f"{source.name} has {fewest} training images of {name}; valid: {SHOTS} or more, which "
            f"tell a class that was not learnt"
        )
    DATASETS[f"{data}{LEARNT}"] = lambda: first
    DATASETS[f"{data}{OTHERS}"] = lambda: last
    return first


def part(source: DataSource, begin: int, end: int) -> DataSource:
    """The classes from one number to another, numbered from 0."""

    def only(images: ImageSet) -> ImageSet:
        index = ((images.labels >= begin) & (images.labels < end)).nonzero()[:, 0]
        found = images.subset(index)
        return replace(found, labels=found.labels - begin)

    test = source.open_test
    return replace(
        source,
        name=f"{source.name}, classes {begin + 1} to {end}",
        labels=source.labels[begin:end],
        open_train=lambda: only(source.open_train()),
        open_test=None if test is None else lambda: only(test()),
    )


def images_of_classes(source: DataSource) -> tuple[int, ...]:
    """Training images of each class."""
    labels = source.open_train().labels
    return tuple(torch.bincount(labels, minlength=len(source.labels)).tolist())
