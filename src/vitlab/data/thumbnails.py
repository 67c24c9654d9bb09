"""Images made small and grey to compare them; files and arrays that are equal in every bit."""

import hashlib
import os
import warnings
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from jaxtyping import UInt8
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from vitlab.bands import is_array
from vitlab.data.checksum import file_digest
from vitlab.data.decode import UPRIGHT
from vitlab.data.look import shown
from vitlab.preprocessing import ORIENTATION

SIDE = 16
"""Pixels of a thumbnail's side; arrays that are smaller are compared as they are."""
LUMA = (299, 587, 114)
"""Thousandths of red, green and blue in grey, as Pillow has them."""
CHUNK = 4096
"""Images made small at once."""

Thumbnails = NDArray[np.uint8]


def same_arrays(images: UInt8[Tensor, "N C H W"]) -> list[list[int]]:
    """Numbers of the images that are equal, group by group."""
    rows = images.contiguous().numpy().reshape(len(images), -1)
    return _same(hashlib.blake2b(row.data, digest_size=16).digest() for row in rows)


def same_files(paths: Sequence[Path]) -> list[list[int]]:
    """Numbers of the files of equal content, group by group; only sizes that recur are read."""
    found = []
    for candidates in _same(_size(path) for path in paths):
        groups = _same(_content(paths[i]) for i in candidates)
        found += [[candidates[i] for i in group] for group in groups]
    return found


def _same(keys: Iterable[Hashable]) -> list[list[int]]:
    """Positions of the keys that occur more than once; None is like nothing else."""
    places: defaultdict[Hashable, list[int]] = defaultdict(list)
    for i, key in enumerate(keys):
        if key is not None:
            places[key].append(i)
    return [same for same in places.values() if len(same) > 1]


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None


def _content(path: Path) -> str | None:
    try:
        return file_digest(path, "blake2b")
    except OSError:
        return None


def array_thumbnails(images: NDArray[np.uint8]) -> Thumbnails:
    """Grey levels `[N, h, w]` of images `[N, C, H, W]`, in whole numbers throughout."""
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
    """Means of SIDE pieces of an axis, which overlap by a pixel where it does not divide."""
    length = grey.shape[axis]
    if length <= SIDE:
        return grey
    starts = np.arange(SIDE) * length // SIDE
    ends = -(-np.arange(1, SIDE + 1) * length // SIDE)
    sums = np.insert(np.cumsum(grey, axis=axis, dtype=np.int32), 0, 0, axis=axis)
    counts = (ends - starts).astype(np.int32).reshape(-1, *[1] * (2 - axis))
    return (sums.take(ends, axis=axis) - sums.take(starts, axis=axis)) // counts


def file_thumbnails(paths: Sequence[Path]) -> tuple[NDArray[np.int64], Thumbnails]:
    """Positions of the files that can be read, and grey levels `[N, SIDE, SIDE]` of these."""
    with warnings.catch_warnings(), ThreadPoolExecutor(os.cpu_count()) as pool:
        warnings.simplefilter("ignore")  # what is wrong with a file is said when it is used
        found = list(pool.map(_thumbnail, paths))
    readable = np.array([thumbnail is not None for thumbnail in found], np.bool_)
    small = [thumbnail for thumbnail in found if thumbnail is not None]
    return readable.nonzero()[0], np.array(small, np.uint8).reshape(-1, SIDE, SIDE)


def _thumbnail(path: Path) -> Thumbnails | None:
    try:
        if is_array(path):
            return np.asarray(shown(path).convert("L").resize((SIDE, SIDE), Image.Resampling.BOX))
        with Image.open(path) as image:
            image.draft("L", (2 * SIDE, 2 * SIDE))
            grey = image.convert("L").resize((SIDE, SIDE), Image.Resampling.BOX)
            orientation = image.getexif().get(ORIENTATION, 1)
    except Exception:  # decoders of damaged files raise nearly anything
        return None
    pixels = np.asarray(grey)
    return UPRIGHT[orientation](pixels) if orientation in UPRIGHT else pixels
