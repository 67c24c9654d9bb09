"""Find duplicate images in a set: exact, or visual.

Two images are compared by the low frequencies of their grey thumbnails, each weighted with its
frequency, because the amplitudes of natural images fall with it: so unrelated images are nearly
orthogonal, and copies of one image at another size, contrast, compression or a pixel aside are not.
"""

import hashlib
import logging
import os
import stat
import warnings
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int, UInt8
from numpy.typing import NDArray
from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile
from torch import Tensor

from vitlab.data.images import ArraySet, FileSet, ImageSet, StoredSet
from vitlab.errors import DataError
from vitlab.images.decode import UPRIGHT, plain
from vitlab.images.open import (
    ImageFile,
    as_file,
    check_pixels,
    check_regular,
    check_single,
    is_array,
    is_tiff,
    open_image,
    opened,
    reason_of,
)
from vitlab.images.preprocessing import ORIENTATION, read_bands
from vitlab.images.statistics import own_white, shown, spread
from vitlab.io.files import file_digest

# Grey thumbnails for comparison; files and arrays that are equal in every bit.

SIDE = 16
"""Pixels of a thumbnail's side; smaller arrays are compared at their size."""
LUMA = (299, 587, 114)
"""Thousandths of red, green and blue in grey, as in Pillow."""
CHUNK = 4096
"""Number of images reduced at once."""

FILES = 256
"""Files in progress at a time, so that interrupts are handled and progress is reported."""
TRIED = 10
"""Number of files tried to find out whether a set can be read."""

Thumbnails = NDArray[np.uint8]
Watch = Callable[[int, int], None]
"""Callback with the number of finished files and the total."""


def same_arrays(images: UInt8[Tensor, "N C H W"]) -> list[list[int]]:
    """Indices of equal images, group by group."""
    rows = images.contiguous().numpy().reshape(len(images), -1)
    return equal_keys(hashlib.blake2b(row.data, digest_size=16).digest() for row in rows)


def same_files(paths: Sequence[Path]) -> list[list[int]]:
    """Indices of files of equal content, group by group; only files of equal size are read."""
    found = []
    for candidates in equal_keys(_size(path) for path in paths):
        groups = equal_keys(_content(paths[i]) for i in candidates)
        found += [[candidates[i] for i in group] for group in groups]
    return found


def equal_keys(keys: Iterable[Hashable]) -> list[list[int]]:
    """Positions of the keys that occur more than once; None equals nothing."""
    places: defaultdict[Hashable, list[int]] = defaultdict(list)
    for i, key in enumerate(keys):
        if key is not None:
            places[key].append(i)
    return [same for same in places.values() if len(same) > 1]


def _size(path: Path) -> int | None:
    """Size of a regular file: a pipe would never end."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def _content(path: Path) -> str | None:
    try:
        return file_digest(path, "blake2b")
    except OSError:
        return None


def array_thumbnails(images: NDArray[np.uint8]) -> Thumbnails:
    """Grey levels `[N, h, w]` of images `[N, C, H, W]`, in integers throughout."""
    chunks = [_shrink(images[i : i + CHUNK]) for i in range(0, len(images), CHUNK)]
    return np.concatenate(chunks) if chunks else np.empty((0, 1, 1), np.uint8)


def _shrink(images: NDArray[np.uint8]) -> Thumbnails:
    channels = images.shape[1]
    parts = np.array(LUMA if channels == 3 else [1] * channels, np.int32)
    grey = np.einsum("nchw,c->nhw", images.astype(np.int32), parts) // parts.sum(dtype=np.int32)
    for axis in (1, 2):
        grey = _average(grey, axis)
    return grey.astype(np.uint8)


def _average(grey: NDArray[np.int32], axis: int) -> NDArray[np.int32]:
    """Means of SIDE pieces of an axis, which overlap by a pixel if it does not divide."""
    length = grey.shape[axis]
    if length <= SIDE:
        return grey
    starts = np.arange(SIDE) * length // SIDE
    ends = -(-np.arange(1, SIDE + 1) * length // SIDE)
    sums = np.insert(np.cumsum(grey, axis=axis, dtype=np.int32), 0, 0, axis=axis)
    counts = (ends - starts).astype(np.int32).reshape(-1, *[1] * (2 - axis))
    return (sums.take(ends, axis=axis) - sums.take(starts, axis=axis)) // counts


def file_thumbnails(
    sources: Sequence[ImageFile], watch: Watch = lambda done, total: None
) -> tuple[Thumbnails, dict[int, str]]:
    """Grey levels `[N, SIDE, SIDE]` of readable files; reasons for the others."""
    found: list[Thumbnails | str] = []
    with warnings.catch_warnings(), ThreadPoolExecutor(os.cpu_count()) as pool:
        warnings.simplefilter("ignore")  # Pillow's, about damage that it can repair
        for start in range(0, len(sources), FILES):
            watch(start, len(sources))
            found += pool.map(_thumbnail, sources[start : start + FILES])
    watch(len(sources), len(sources))
    reasons = {i: reason for i, reason in enumerate(found) if isinstance(reason, str)}
    small = [thumbnail for thumbnail in found if not isinstance(thumbnail, str)]
    return np.array(small, np.uint8).reshape(-1, SIDE, SIDE), reasons


def check_readable(where: object, sources: Sequence[ImageFile]) -> None:
    """Raise early for a set if none of a sample of its files can be read."""
    some = spread(sources, TRIED)
    _, reasons = file_thumbnails(some)
    if some and len(reasons) == len(some):
        found = f"none of {len(some)} images compared in {where} can be read"
        raise DataError(f"{found}; one is {os.fspath(some[0])}: {reasons[0]}")


def _thumbnail(source: ImageFile) -> Thumbnails | str:
    try:
        if is_array(source) or is_tiff(source):  # Pillow loses bands or depth of some, or fails
            with as_file(source) as path:
                check_regular(path)
                return grey(shown(Path(path)))
        with open_image(opened(source)) as image:
            check_single(image)
            return thumbnail(image)
    except Exception as error:  # decoders of damaged files raise nearly anything
        return reason_of(error, os.fspath(source))


def thumbnail(image: Image.Image) -> Thumbnails:
    """Grey levels `[SIDE, SIDE]` of an image that was just opened, upright."""
    check_pixels("image", image.height, image.width)  # before a draft makes it smaller
    orientation = 1
    if isinstance(image, JpegImageFile) and plain(image):
        image.draft("L", (2 * SIDE, 2 * SIDE))
        orientation = image.getexif().get(ORIENTATION, 1)
    else:
        image = read_bands(image, 3, own_white(image))[0]
    pixels = grey(image)
    return UPRIGHT[orientation](pixels) if orientation in UPRIGHT else pixels


def grey(image: Image.Image) -> Thumbnails:
    """Grey levels `[SIDE, SIDE]` of an image as stored."""
    return np.asarray(image.convert("L").resize((SIDE, SIDE), Image.Resampling.BOX))


FREQUENCIES = 8
"""Number of frequencies per axis."""
NOISE = 2.0
"""Grey levels of noise: flatter images all count as the same blank."""
COSINES = (0.9, 0.95, 0.98, 0.99, 0.995)
"""Cosines from which on two images are duplicates, tried in this order: if a set is so uniform that
one links images by the hundreds, as clothes cut out on black do, the next is used.
"""
LARGEST_SHARE, LARGEST_COUNT = 1 / 200, 50
"""Largest plausible group of duplicates: a share of the set, or a count in a small one."""
NEAR_LIMIT = 200_000
"""Set size beyond which only exact duplicates are searched: pairs grow with the square."""
ROWS, COLUMNS = 256, 2048
"""Images compared at once, few enough for the products to stay in the cache."""
PAIRS = 1 << 19
"""Number of pairs collected before they are joined."""

Numbers = NDArray[np.int64]
Pairs = tuple[Numbers, Numbers, NDArray[np.float64]]

log = logging.getLogger(__name__)


def duplicate_groups(data: ImageSet) -> Int[Tensor, " N"]:
    """For each image the index of its first duplicate, direct or by links."""
    found = _compare_arrays(data) if isinstance(data, ArraySet) else compare_files(data)[0]
    return torch.from_numpy(found)


def compare_files(
    data: StoredSet, watch: Watch = lambda done, total: None
) -> tuple[Numbers, dict[int, str]]:
    """Groups of files, and the reasons of those that cannot be read."""
    groups = exact_groups(data)
    if _too_many(len(data)):
        return groups, {}
    # The first of exact duplicates represents all.
    which = np.unique(groups)
    small, reasons = file_thumbnails([data.source(i) for i in which.tolist()], watch)
    bad = {int(which[place]): reason for place, reason in reasons.items()}
    readable = np.delete(which, list(reasons))
    broken = {i: bad[first] for i, first in enumerate(groups.tolist()) if first in bad}
    if len(readable):
        groups = join_alike(groups, readable, small)
    return groups, broken


def exact_groups(data: StoredSet) -> Numbers:
    """For each image the index of the first with the same bytes."""
    if isinstance(data, FileSet):
        return _united(len(data), same_files(data.paths))
    digests = data.index.digest[data.numbers.numpy()]
    _, first, group = np.unique(digests, return_index=True, return_inverse=True)
    return first[group].astype(np.int64)


def _compare_arrays(data: ArraySet) -> Numbers:
    groups = _united(len(data), same_arrays(data.images))
    if _too_many(len(data)):
        return groups
    which = np.unique(groups)
    return join_alike(groups, which, array_thumbnails(data.images.numpy()[which]))


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
    """Unit vectors whose products measure the similarity of two images."""
    rows, columns = (_cosines(length) for length in small.shape[1:])
    found = np.einsum(
        "kh,nhw,lw->nkl", rows, small.astype(np.float64), columns, optimize=True
    )  # [N, row frequency, column frequency]
    weights = np.hypot(*np.indices((len(rows), len(columns))))
    vectors = (found * weights).reshape(len(small), -1)
    # The mean has the weight 0: its place holds the shared component of all blank images.
    vectors[:, 0] = NOISE * np.linalg.norm(weights) or 1.0
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def _cosines(length: int) -> NDArray[np.float64]:
    """Lowest rows of the orthonormal cosine transform (DCT-II) of `length` pixels."""
    waves = np.arange(min(length, FREQUENCIES))[:, None]
    matrix = np.cos(np.pi * waves * (2 * np.arange(length) + 1) / (2 * length))
    return matrix * np.sqrt(np.where(waves == 0, 1, 2) / length)


def join_alike(groups: Numbers, which: Numbers, small: Thumbnails) -> Numbers:
    """Groups, joined wherever two of the images `which` look alike in their thumbnails.

    Images that vary in one direction alone, such as signals in one row, are never joined: their
    differences may be lost in a thumbnail.
    """
    level = (small == small[:, :1]).all(axis=(1, 2)), (small == small[:, :, :1]).all(axis=(1, 2))
    kept = level[0] == level[1]
    return join_near(groups, which[kept], describe(small[kept])) if kept.any() else groups


def join_near(groups: Numbers, which: Numbers, vectors: Float[np.ndarray, "M D"]) -> Numbers:
    """Groups, joined wherever two of the images `which` are visual duplicates."""
    joined = {cosine: groups.copy() for cosine in COSINES}
    for i, j, cosines in _buffered(near_pairs(vectors, COSINES[0])):
        for least, found in joined.items():
            enough = cosines >= least
            unite(found, which[i[enough]], which[j[enough]])
    largest = max(LARGEST_COUNT, LARGEST_SHARE * len(which))
    for least, found in joined.items():
        if np.bincount(found[which]).max(initial=0) <= largest:
            return found
        log.info("at a cosine of %s, too many images are alike to find duplicates", least)
    return groups


def near_pairs(vectors: Float[np.ndarray, "M D"], least: float) -> Iterator[Pairs]:
    """Every pair of unit vectors with at least that product, and the product."""
    single = vectors.astype(np.float32)
    proposed = np.float32(least - 1e-4)  # float32 only proposes candidates
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
    """Same pairs in larger chunks."""
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
    """Join the groups of each pair; a group is identified by its smallest index."""
    while True:
        a, b = groups[first], groups[second]
        differ = a != b
        if not differ.any():
            return
        first, second, a, b = first[differ], second[differ], a[differ], b[differ]
        np.minimum.at(groups, np.maximum(a, b), np.minimum(a, b))
        while (groups[groups] != groups).any():
            groups[:] = groups[groups]
