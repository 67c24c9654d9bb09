"""A part of the training images held out, with which nothing in the rest is a duplicate."""

from collections import Counter

import numpy as np
import torch
from numpy.typing import NDArray

from vitlab.data.duplicates import duplicate_groups
from vitlab.data.images import FileSet, ImageSet
from vitlab.data.random import generator
from vitlab.data.strata import strata
from vitlab.data.survey import known_groups, surveyed
from vitlab.errors import DataError


def hold_out(
    train: ImageSet, *, share: float | None = None, count: int | None = None, seed: int
) -> tuple[ImageSet, ImageSet]:
    """What remains and what is held out: each stratum in proportion, duplicates on one side.

    `share` of the images or `count` of them; fewer where a class is nothing but duplicates.
    Files that cannot be read are on neither side.
    """
    if isinstance(train, FileSet):
        train = surveyed(train)
    wanted = _wanted(len(train), share, count)
    labels = strata(train.labels)
    quotas = class_quotas(np.bincount(labels), wanted)
    groups = known_groups(train) if isinstance(train, FileSet) else duplicate_groups(train)
    held = _choose(groups.numpy(), labels, quotas, seed)
    if not held.any():
        raise DataError(
            f"none of {len(train)} images can be held out: each class is one image and its "
            "duplicates, or too few are wanted"
        )
    index = torch.from_numpy(held)
    return train.subset((~index).nonzero()[:, 0]), train.subset(index.nonzero()[:, 0])


def _wanted(images: int, share: float | None, count: int | None) -> int:
    if (share is None) == (count is None):
        raise DataError("hold_out takes either a share or a count")
    if share is not None:
        if not 0.0 < share < 1.0:
            raise DataError(f"share {share} is not between 0 and 1")
        count = round(share * images)
    assert count is not None
    if not 1 <= count < images:
        raise DataError(f"{count} of {images} images cannot be held out; valid: 1 to {images - 1}")
    return count


def class_quotas(sizes: NDArray[np.int64], wanted: int) -> NDArray[np.int64]:
    """How many of each class make up `wanted`: in proportion, largest remainders rounded up."""
    exact = sizes * wanted
    total = int(sizes.sum())
    quotas = exact // total
    order = np.lexsort((-sizes, -(exact % total)))
    quotas[order[: wanted - int(quotas.sum())]] += 1
    return np.minimum(quotas, np.maximum(sizes - 1, 0))  # one of each class is left to learn from


def _choose(
    groups: NDArray[np.int64], labels: NDArray[np.int64], quotas: NDArray[np.int64], seed: int
) -> NDArray[np.bool_]:
    """Take whole groups, in an order drawn from the seed, as long as they fit into the quotas."""
    order = torch.randperm(len(labels), generator=generator(seed, "hold_out")).numpy()
    members: dict[int, list[int]] = {}
    for image, group in zip(order.tolist(), groups[order].tolist(), strict=True):
        members.setdefault(group, []).append(image)
    held = np.zeros(len(labels), np.bool_)
    left = quotas.tolist()
    for images in members.values():
        needed = Counter(labels[images].tolist())
        if all(left[label] >= number for label, number in needed.items()):
            held[images] = True
            for label, number in needed.items():
                left[label] -= number
    return held
