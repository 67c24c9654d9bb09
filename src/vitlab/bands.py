"""Pixels of files that Pillow does not read: NumPy arrays, and TIFFs of any number of bands.

A TIFF is unpacked by Pillow all the same: its strips or tiles are handed over as those of a grey
image that is as many times wider as there are bands.
"""

import io
import math
import os
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, TiffImagePlugin, UnidentifiedImageError

from vitlab.errors import InputError, SeveralPictures, TooLarge
from vitlab.image_file import OPENING, describe_bytes, is_part, pixel_limit, several, too_many

Pixels = NDArray[Any]
ARRAYS = frozenset({".npy"})
TIFFS = frozenset({".tif", ".tiff"})
WIDTH, HEIGHT, BITS, COMPRESSION, PHOTOMETRIC = 256, 257, 258, 259, 262
STRIPS, SAMPLES, ROWS, STRIP_BYTES, PLANAR, PREDICTOR = 273, 277, 278, 279, 284, 317
TILE_WIDTH, TILE_HEIGHT, TILES, TILE_BYTES, SAMPLE_FORMAT = 322, 323, 324, 325, 339
"""Tags of TIFF 6.0."""


class Bands(NamedTuple):
    """What the header of a file says of its bands."""

    channels: int
    deep: bool
    """More than 8 bits a value."""


def is_array(path: str | os.PathLike[str]) -> bool:
    """Whether a file holds a NumPy array, by its ending."""
    return os.path.splitext(path)[1].lower() in ARRAYS


def is_tiff(path: str | os.PathLike[str]) -> bool:
    """Whether a file is a TIFF, by its ending."""
    return os.path.splitext(path)[1].lower() in TIFFS


def read_array(path: str | os.PathLike[str]) -> Pixels:
    """The pixels [H, W, C] of a `.npy` file of [H, W], [H, W, C] or [C, H, W]."""
    return _channels_last(np.load(path, allow_pickle=False), path)


def array_bands(path: str | os.PathLike[str]) -> Bands:
    """Channels of a `.npy` file, without reading its pixels."""
    array = _channels_last(np.load(path, mmap_mode="r", allow_pickle=False), path)
    return Bands(array.shape[2], array.dtype != np.uint8)


def _channels_last(array: Pixels, path: str | os.PathLike[str]) -> Pixels:
    if array.ndim == 2:
        return array[..., None]
    if array.ndim != 3:
        raise InputError(
            f"{os.fspath(path)}: an array of shape {array.shape}; "
            "valid: [H, W], [H, W, C] or [C, H, W]"
        )
    return np.moveaxis(array, 0, 2) if _bands_first(array.shape, path) else array


def _bands_first(shape: tuple[int, ...], path: str | os.PathLike[str]) -> bool:
    """Whether an array is [C, H, W]: its images are squares, or have fewer bands than pixels."""
    first, middle, last = shape
    if first == middle or middle == last:
        return first != middle
    if middle <= min(first, last) or first == last:
        raise InputError(
            f"{os.fspath(path)}: an array of shape {shape}, of which nothing tells the bands; "
            "valid: [H, W, C] or [C, H, W] of square images, or with C below H and W"
        )
    return first < last


def tiff_bands(path: str | os.PathLike[str]) -> Bands:
    """What the first page of a TIFF holds."""
    with open(path, "rb") as file:
        tags = _tags(file)
    return Bands(int(tags.get(SAMPLES, 1)), max(_bits(tags)) > 8)


def read_tiff(path: str | os.PathLike[str]) -> Pixels:
    """The pixels [H, W, C] of a TIFF of one page, in the file's own type."""
    name = os.fspath(path)
    with open(path, "rb") as file:
        tags = _tags(file)
        _check_one_page(file, tags)
        dtype = _dtype(tags, name)
        planes = int(tags.get(SAMPLES, 1)) if tags.get(PLANAR, 1) == 2 else 1
        pixels = [_plane(file, tags, plane, planes, dtype, name) for plane in range(planes)]
    return np.concatenate(pixels, axis=2)


def _tags(file: Any, page: int | None = None) -> Any:
    """The tags of the first page, or of the one at this place in the file."""
    file.seek(0)
    header = file.read(8)
    if header[2:3] == b"\x2b" or header[3:4] == b"\x2b":
        header += file.read(8)
    if header[:2] not in (b"II", b"MM"):
        file.seek(0)
        raise UnidentifiedImageError(describe_bytes(file.read(OPENING)))
    tags = TiffImagePlugin.ImageFileDirectory_v2(header)
    file.seek(page or tags.next)
    tags.load(file)
    return tags


def _check_one_page(file: Any, tags: Any) -> None:
    """Smaller versions and masks of a page, as maps have them, are no pages of their own."""
    seen = set()
    while tags.next and tags.next not in seen:
        seen.add(tags.next)
        tags = _tags(file, tags.next)
        if not is_part(tags):
            raise SeveralPictures(several("TIFF"))


def _bits(tags: Any) -> tuple[int, ...]:
    bits = tags.get(BITS, (1,))
    return bits if isinstance(bits, tuple) else (bits,)


def _dtype(tags: Any, name: str) -> np.dtype[Any]:
    formats = tags.get(SAMPLE_FORMAT, (1,))
    kind = {1: "u", 2: "i", 3: "f"}.get((formats if isinstance(formats, tuple) else (formats,))[0])
    bits = set(_bits(tags))
    if kind is None or len(bits) != 1 or not bits <= {8, 16, 32}:
        raise InputError(f"{name}: bands of {sorted(bits)} bits; valid: 8, 16 or 32, all alike")
    return np.dtype(f"{kind}{bits.pop() // 8}")


def _plane(
    file: Any, tags: Any, plane: int, planes: int, dtype: np.dtype[Any], name: str
) -> Pixels:
    """The bands that lie together: all of them, or one of a file that holds them apart."""
    samples = int(tags.get(SAMPLES, 1)) // planes
    width, height = int(tags[WIDTH]), int(tags[HEIGHT])
    limit = pixel_limit()
    if limit is not None and width * height * samples > limit:
        found = f"{height} x {width} x {samples}"
        raise TooLarge(f"{name}: {too_many(width * height * samples, found)}")
    tiled = TILES in tags
    cell = (
        (int(tags[TILE_HEIGHT]), int(tags[TILE_WIDTH]))
        if tiled
        else (min(int(tags.get(ROWS, height)), height), width)
    )
    down, across = math.ceil(height / cell[0]), math.ceil(width / cell[1])
    canvas = np.empty((down * cell[0], across * cell[1], samples), dtype)
    offsets, sizes = (tags[TILES], tags[TILE_BYTES]) if tiled else (tags[STRIPS], tags[STRIP_BYTES])
    for i in range(down * across):
        row, column = divmod(i, across)
        rows = cell[0] if tiled else min(cell[0], height - row * cell[0])
        file.seek(offsets[plane * down * across + i])
        packed = file.read(sizes[plane * down * across + i])
        part = _unpack(packed, tags, (rows, cell[1] * samples), dtype)
        part = part.reshape(rows, cell[1], samples)
        if tags.get(PREDICTOR, 1) == 2:
            part = np.cumsum(part, axis=1, dtype=dtype)
        top, left = row * cell[0], column * cell[1]
        canvas[top : top + rows, left : left + cell[1]] = part
    return canvas[:height, :width]


def _unpack(packed: bytes, tags: Any, shape: tuple[int, int], dtype: np.dtype[Any]) -> Pixels:
    """One strip or tile as numbers; whatever its compression, libtiff behind Pillow knows it."""
    if tags.get(PREDICTOR, 1) not in (1, 2):
        raise InputError(f"predictor {tags[PREDICTOR]}; valid: none, or 2 (differences)")
    rows, columns = shape[0], shape[1] * dtype.itemsize
    if tags.get(COMPRESSION, 1) == 1:
        content = np.frombuffer(packed, np.uint8, rows * columns)
    else:
        content = np.frombuffer(_decompress(packed, int(tags[COMPRESSION]), rows, columns), "u1")
    return content.view(dtype.newbyteorder("<" if tags.prefix == b"II" else ">")).reshape(shape)


def _decompress(packed: bytes, compression: int, rows: int, columns: int) -> bytes:
    """Bytes as an 8-bit grey TIFF of one strip, which Pillow reads."""
    tags = TiffImagePlugin.ImageFileDirectory_v2()
    numbers = {
        WIDTH: columns,
        HEIGHT: rows,
        BITS: 8,
        COMPRESSION: compression,
        PHOTOMETRIC: 1,
        SAMPLES: 1,
        ROWS: rows,
        STRIP_BYTES: len(packed),
        STRIPS: 0,  # behind the directory: Pillow adds where that is
    }
    for tag, number in numbers.items():
        tags[tag] = number
    stream = io.BytesIO(b"II*\0\x08\0\0\0" + tags.tobytes(8) + packed)
    with Image.open(stream) as image:
        return image.tobytes()
