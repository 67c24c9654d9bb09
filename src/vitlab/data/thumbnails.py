"""Images made small and grey to compare them; files and arrays that are equal in every bit."""

import hashlib
import os
import stat
import warnings
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from jaxtyping import UInt8
from numpy.typing import NDArray
from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile
from torch import Tensor

from vitlab.bands import is_array, is_tiff
from vitlab.checksum import file_digest
from vitlab.data.decode import UPRIGHT, check_regular, plain, reason_of
from vitlab.data.look import own_white, shown, spread
from vitlab.errors import DataError
from vitlab.image_file import check_pixels, check_single, open_image
from vitlab.preprocessing import ORIENTATION, read_bands

SIDE = 16
"""Pixels of a thumbnail's side; arrays that are smaller are compared as they are."""
LUMA = (299, 587, 114)
"""Thousandths of red, green and blue in grey, as Pillow has them."""
CHUNK = 4096
"""Images made small at once."""

FILES = 256
"""Files under way at a time, so that an interrupt is heard and progress is told."""
TRIED = 10
"""Files that tell whether any of a set can be read."""

Thumbnails = NDArray[np.uint8]
Watch = Callable[[int, int], None]
"""Told how many of how many files are done."""


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
    """Of a regular file: a pipe would never end."""
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


def file_thumbnails(
    paths: Sequence[Path], watch: Watch = lambda done, total: None
) -> tuple[Thumbnails, dict[int, str]]:
    """Grey levels `[N, SIDE, SIDE]` of the files that can be read; why not, of the others."""
    found: list[Thumbnails | str] = []
    with warnings.catch_warnings(), ThreadPoolExecutor(os.cpu_count()) as pool:
        warnings.simplefilter("ignore")  # of Pillow about damage that it can repair
        for start in range(0, len(paths), FILES):
            watch(start, len(paths))
            found += pool.map(_thumbnail, paths[start : start + FILES])
    watch(len(paths), len(paths))
    reasons = {i: reason for i, reason in enumerate(found) if isinstance(reason, str)}
    small = [thumbnail for thumbnail in found if not isinstance(thumbnail, str)]
    return np.array(small, np.uint8).reshape(-1, SIDE, SIDE), reasons


def check_readable(where: object, paths: Sequence[Path]) -> None:
    """Refuse a set if none of some of its files can be read: sooner than when they are needed."""
    some = spread(paths, TRIED)
    _, reasons = file_thumbnails(some)
    if some and len(reasons) == len(some):
        found = f"none of {len(some)} images looked at in {where} can be read"
        raise DataError(f"{found}; one is {some[0]}: {reasons[0]}")


def _thumbnail(path: Path) -> Thumbnails | str:
    try:
        check_regular(os.fspath(path))
        if is_array(path) or is_tiff(path):  # Pillow loses bands or depth of some, or knows none
            return grey(shown(path))
        with open_image(path) as image:
            check_single(image)
            return thumbnail(image)
    except Exception as error:  # decoders of damaged files raise nearly anything
        return reason_of(error, str(path))


def thumbnail(image: Image.Image) -> Thumbnails:
    """Grey levels `[SIDE, SIDE]` of an image that was just opened, as it is read for a model."""
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
    """Grey levels `[SIDE, SIDE]` of an image as it is stored."""
    return np.asarray(image.convert("L").resize((SIDE, SIDE), Image.Resampling.BOX))
