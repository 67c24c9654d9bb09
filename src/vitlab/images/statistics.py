"""Channels, brightness and statistics of files, measured on a sample."""

import math
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitlab.errors import DataError, InputError
from vitlab.images.bands import Bands, array_bands, read_array, read_tiff, tiff_bands
from vitlab.images.open import (
    ImageFile,
    as_file,
    check_pixels,
    is_array,
    is_tiff,
    open_image,
)
from vitlab.images.preprocessing import IMAGENET_MEAN, IMAGENET_STD, MODES, read_bands

T = TypeVar("T")
HEADERS, READ = 100, 200
"""Number of files whose headers, and whose pixels, are read."""
SIDE = 256
"""Pixels of a side that suffice for statistics."""
GREY = frozenset({"1", "L", "LA", "La", "F"})
BRIGHT = 99.9
"""Percentage of the values at or below `white`."""
LARGEST = 65535
"""Largest value of 16 bits."""
FULL_RANGE = 0.9
"""Fraction of the 16-bit range from which on files count as using all of it."""


class ReadSettings(NamedTuple):
    """Settings that a model needs to read the files."""

    channels: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    white: float | None
    note: str | None
    """Findings, if the files are not the usual 8-bit RGB."""


def read_settings(
    paths: Sequence[ImageFile],
    training: Callable[[], Sequence[ImageFile]],
    *,
    channels: int | None = None,
) -> ReadSettings:
    """Channels, statistics and brightness of files; RGB of 8 bits has ImageNet's statistics.

    `channels` as requested by the user; None: 1 if all are grey, 3 with colours, else the number in
    the files. Measured on the `training` files only.
    """
    found = [bands for bands in map(_bands, spread(paths, HEADERS)) if bands is not None]
    count = _decide({bands.channels for bands in found}) if channels is None else channels
    deep = any(bands.deep for bands in found)
    white = _white(spread(training(), HEADERS)) if deep else None
    if count == 3 and white is None:
        return ReadSettings(3, IMAGENET_MEAN, IMAGENET_STD, None, None)
    mean, std = statistics(spread(training(), READ), count, white)
    bright = "" if white is None else f" of values from 0 to {white:g}"
    note = f"Images of {count} channel{'' if count == 1 else 's'}{bright}"
    return ReadSettings(count, mean, std, white, note)


def spread(items: Sequence[T], count: int) -> list[T]:
    """At most `count` items, evenly spaced."""
    step = max(len(items) / count, 1.0)
    return [items[int(i * step)] for i in range(min(count, len(items)))]


def statistics(
    paths: Sequence[ImageFile], channels: int, white: float | None
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation of each channel, of values in [0, 1]."""
    count, sums, squares = 0, np.zeros(channels), np.zeros(channels)
    reason: Exception | None = None
    for path in paths:
        try:
            pixels = _small(path, channels, white)
        except Exception as error:  # decoders of damaged files raise nearly anything
            reason = error
            continue
        count += len(pixels)
        sums += pixels.sum(axis=0)
        squares += (pixels**2).sum(axis=0)
    if not count:
        raise DataError(f"no image can be read with {channels} channels ({reason})")
    mean = sums / count
    # A constant channel, such as an alpha of opaque images, has no deviation.
    std = np.sqrt(np.maximum(squares / count - mean**2, 1 / 255**2))
    return tuple(round(v, 5) for v in mean.tolist()), tuple(round(v, 5) for v in std.tolist())


def _small(source: ImageFile, channels: int, white: float | None) -> NDArray[np.float64]:
    """Some pixels of an image, [N, C]."""
    with warnings.catch_warnings(), as_file(source) as path:
        warnings.simplefilter("ignore")  # problems of a file are reported when it is used
        bands = read_bands(path, channels, white)
    step = max(1, math.ceil(max(bands[0].size) / SIDE))
    pixels = [np.asarray(band)[::step, ::step] for band in bands]
    return np.stack(pixels, axis=-1).reshape(-1, channels) / 255


def shown(source: ImageFile) -> Image.Image:
    """Any file as RGB: of other than 1 or 3 channels the first three, at full brightness."""
    with as_file(source) as path:
        return _shown(Path(path))


def _shown(path: Path) -> Image.Image:
    found = _bands(path) or Bands(3, False)
    white = (_white([path]) or LARGEST) if found.deep else None
    if found.channels in MODES:
        return read_bands(path, 3, white)[0]
    bands = read_bands(path, found.channels, white)
    return Image.merge("RGB", bands[:3] if len(bands) >= 3 else bands[:1] * 3)


def tile_image(source: ImageFile) -> Image.Image | Path:
    """Input of a contact sheet: the path, or an image for files that only this package reads."""
    if isinstance(source, Path) and not (is_array(source) or is_tiff(source)):
        return source
    try:
        image = shown(source)
    except InputError:  # the sheet tries again, and reports the reason
        return Path(source)
    image.thumbnail((2 * SIDE, 2 * SIDE))
    return image


def own_white(image: Image.Image) -> float | None:
    """Brightness of an image of more than 8 bits; None for 8 bits."""
    if not _is_deep(image):
        return None
    highest = float(np.percentile(np.asarray(image), BRIGHT))
    return highest if highest > 0 else LARGEST


def _is_deep(image: Image.Image) -> bool:
    return image.mode == "F" or image.mode.startswith("I")


def _bands(source: ImageFile) -> Bands | None:
    """Bands from a file's header; None if it cannot be read."""
    try:
        with as_file(source) as path:
            return _bands_of(path)
    except Exception:  # decoders of damaged files raise nearly anything
        return None


def _bands_of(path: str) -> Bands:
    if is_array(path):
        return array_bands(path)
    if is_tiff(path) and tiff_bands(path).channels not in (1, 2, 4):
        return tiff_bands(path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with open_image(path) as image:
            deep = _is_deep(image)
            return Bands(1 if deep or image.mode in GREY else 3, deep)


def _decide(found: set[int]) -> int:
    if len(found) <= 1:
        return found.pop() if found else 3
    if found <= set(MODES):
        return 3
    numbers = " and ".join(map(str, sorted(found)))
    raise DataError(f"images of {numbers} channels; valid: one number of them, or --channels N")


def _white(paths: Sequence[ImageFile]) -> float | None:
    """Brightness of the files with more than 8 bits; None if they use all of 16 bits."""
    highest, integers = 0.0, True
    for path in paths:
        try:
            with as_file(path) as file:
                pixels = _deep(file)
        except Exception:  # decoders of damaged files raise nearly anything
            continue
        if pixels.dtype not in (np.uint8, np.bool_):
            highest = max(highest, float(np.percentile(pixels, BRIGHT)))
            integers = integers and pixels.dtype.kind != "f"
    if highest <= 0 or (integers and FULL_RANGE * LARGEST <= highest <= LARGEST):
        return None
    return float(math.ceil(highest)) if integers else highest


def _deep(path: str) -> NDArray[Any]:
    if is_array(path):
        return read_array(path)
    if is_tiff(path) and tiff_bands(path).deep:
        return read_tiff(path)
    with open_image(path) as image:
        check_pixels("image", image.height, image.width)
        return np.asarray(image)
