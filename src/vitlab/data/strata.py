"""Images sorted into kinds of which every part of a set should hold its share."""

import numpy as np
from numpy.typing import NDArray

from vitlab.data.images import Labels, task_of

BINS = 10
"""Ranges of a value that are kept in proportion."""
IN_A_BIN = 10
"""Images in each of these, at the least."""


def strata(labels: Labels) -> NDArray[np.int64]:
    """The number of each image's stratum: its class, its rarest label, or its range of values."""
    task = task_of(labels)
    if task == "single-label":
        return labels.numpy()
    return rarest_label(labels.numpy()) if task == "multi-label" else _ranges(labels[:, 0].numpy())


def rarest_label(labels: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Of each image's labels the one that fewest images have; without any, one number more."""
    images, classes = labels.shape
    counts = labels.sum(axis=0)
    rarity = np.where(labels, counts, images + 1)
    return np.where(labels.any(axis=1), rarity.argmin(axis=1), classes)


def _ranges(values: NDArray[np.float32]) -> NDArray[np.int64]:
    """Ranges that hold equally many images, numbered from the lowest values up."""
    bins = min(BINS, max(1, len(values) // IN_A_BIN))
    ranks = np.empty(len(values), np.int64)
    ranks[np.argsort(values, kind="stable")] = np.arange(len(values))
    return ranks * bins // len(values)
