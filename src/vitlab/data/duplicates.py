"""Which images of a set are the same picture: bit for bit, or to the eye.

Two images are compared by the low frequencies of their small grey versions, each weighted with its
frequency, because natural images have amplitudes that fall with it: so unrelated ones are nearly
orthogonal, and the same picture at another size, contrast, compression or a pixel aside is not.
"""

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from vitlab.data.images import ArraySet, FileSet, ImageSet
from vitlab.data.thumbnails import (
    Thumbnails,
    Watch,
    array_thumbnails,
    file_thumbnails,
    same_arrays,
    same_files,
)

FREQUENCIES = 8
"""Of each axis."""
NOISE = 2.0
"""Grey levels that tell nothing: images flatter than that are the same blank."""
COSINES = (0.9, 0.95, 0.98, 0.99, 0.995)
"""From which on two images are the same picture, tried in this order: where a set is so uniform
that one links images by the hundreds, as clothes cut out on black do, the next is taken."""
LARGEST_SHARE, LARGEST_COUNT = 1 / 200, 50
"""A group of duplicates is credible up to that share of the set, or that count in a small one."""
NEAR_LIMIT = 200_000
"""Images beyond which only exact duplicates are looked for: pairs grow with the square."""
ROWS, COLUMNS = 256, 2048
"""Images compared at once, so many that the products stay in the cache."""
PAIRS = 1 << 19
"""Pairs that are kept before they are joined."""

Numbers = NDArray[np.int64]
Pairs = tuple[Numbers, Numbers, NDArray[np.float64]]

log = logging.getLogger(__name__)


def duplicate_groups(data: ImageSet) -> Int[Tensor, " N"]:
    """For each image the number of the first one that is the same picture, directly or by links."""
    found = compare_files(data.paths)[0] if isinstance(data, FileSet) else _compare_arrays(data)
    return torch.from_numpy(found)


def compare_files(
    paths: Sequence[Path], watch: Watch = lambda done, total: None
) -> tuple[Numbers, dict[int, str]]:
    """The groups of files, and which of them cannot be read and why."""
    groups = _united(len(paths), same_files(paths))
    if _too_many(len(paths)):
        return groups, {}
    # Of exact duplicates the first stands for all.
    which = np.unique(groups)
    small, reasons = file_thumbnails([paths[i] for i in which], watch)
    bad = {int(which[place]): reason for place, reason in reasons.items()}
    readable = np.delete(which, list(reasons))
    broken = {i: bad[first] for i, first in enumerate(groups.tolist()) if first in bad}
    if len(readable):
        groups = join_near(groups, readable, describe(small))
    return groups, broken


def _compare_arrays(data: ArraySet) -> Numbers:
    groups = _united(len(data), same_arrays(data.images))
    if _too_many(len(data)):
        return groups
    which = np.unique(groups)
    return join_near(groups, which, describe(array_thumbnails(data.images.numpy()[which])))


def _united(images: int, exact: Sequence[Sequence[int]]) -> Numbers:
    groups = np.arange(images, dtype=np.int64)
    for same in exact:
        unite(groups, np.array(same[:-1]), np.array(same[1:]))
    return groups


def _too_many(images: int) -> bool:
    if images > NEAR_LIMIT:
        log.warning("%d images are many: no near duplicates are looked for among them", images)
    return images > NEAR_LIMIT


def describe(small: Thumbnails) -> Float[np.ndarray, "N D"]:
    """Unit vectors whose products tell how much two images are the same picture."""
    rows, columns = (_cosines(length) for length in small.shape[1:])
    found = np.einsum(
        "kh,nhw,lw->nkl", rows, small.astype(np.float64), columns, optimize=True
    )  # [N, row frequency, column frequency]
    weights = np.hypot(*np.indices((len(rows), len(columns))))
    vectors = (found * weights).reshape(len(small), -1)
    # The mean has the weight 0: in its place stands what all blank images have in common.
    vectors[:, 0] = NOISE * np.linalg.norm(weights) or 1.0
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def _cosines(length: int) -> NDArray[np.float64]:
    """The lowest rows of the orthonormal cosine transform (DCT-II) of so many pixels."""
    waves = np.arange(min(length, FREQUENCIES))[:, None]
    matrix = np.cos(np.pi * waves * (2 * np.arange(length) + 1) / (2 * length))
    return matrix * np.sqrt(np.where(waves == 0, 1, 2) / length)


def join_near(groups: Numbers, which: Numbers, vectors: Float[np.ndarray, "M D"]) -> Numbers:
    """The groups, joined wherever two of the images `which` are the same picture to the eye."""
    joined = {cosine: groups.copy() for cosine in COSINES}
    for i, j, cosines in _buffered(near_pairs(vectors, COSINES[0])):
        for least, found in joined.items():
            enough = cosines >= least
            unite(found, which[i[enough]], which[j[enough]])
    largest = max(LARGEST_COUNT, LARGEST_SHARE * len(which))
    for least, found in joined.items():
        if np.bincount(found[which]).max(initial=0) <= largest:
            return found
        log.info("so many images are alike by a cosine of %s that it tells no duplicates", least)
    return groups


def near_pairs(vectors: Float[np.ndarray, "M D"], least: float) -> Iterator[Pairs]:
    """Every pair of unit vectors with at least that product, and the product."""
    single = vectors.astype(np.float32)
    proposed = np.float32(least - 1e-4)  # float32 only proposes
    for top in range(0, len(single), ROWS):
        for left in range(top, len(single), COLUMNS):
            products = single[top : top + ROWS] @ single[left : left + COLUMNS].T
            if products.max() < proposed:
                continue
            i, j = np.nonzero(products >= proposed)
            i, j = i + top, j + left
            i, j = i[i < j], j[i < j]
            exact = np.einsum("nd,nd->n", vectors[i], vectors[j])
            near = exact >= least
            yield i[near], j[near], exact[near]


def _buffered(pairs: Iterator[Pairs]) -> Iterator[Pairs]:
    """The same pairs in larger portions."""
    held: list[Pairs] = []
    for found in pairs:
        held.append(found)
        if sum(len(i) for i, _, _ in held) >= PAIRS:
            yield _concatenate(held)
            held = []
    if held:
        yield _concatenate(held)


def _concatenate(held: list[Pairs]) -> Pairs:
    first, second, cosines = (np.concatenate(column) for column in zip(*held, strict=True))
    return first, second, cosines


def unite(groups: Numbers, first: Numbers, second: Numbers) -> None:
    """Join the groups of each pair; a group is known by its smallest number."""
    while True:
        a, b = groups[first], groups[second]
        differ = a != b
        if not differ.any():
            return
        first, second, a, b = first[differ], second[differ], a[differ], b[differ]
        np.minimum.at(groups, np.maximum(a, b), np.minimum(a, b))
        while (groups[groups] != groups).any():
            groups[:] = groups[groups]
