"""Pixels of files that Pillow does not read: NumPy arrays, and TIFFs of any number of bands.

Pillow still decompresses a TIFF: its strips or tiles are passed on as those of a grey image that is
as many times wider as there are bands.
"""

import io
import math
import os
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray
from PIL import TiffImagePlugin, UnidentifiedImageError

from vitlab.errors import InputError, SeveralFrames, TooLarge
from vitlab.images.open import (
    OPENING,
    describe_bytes,
    is_part,
    open_image,
    pixel_limit,
    several,
    too_many,
)

Pixels = NDArray[Any]
READERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
"""Readers of the header of a `.npy` file, by the version of the format."""
USUAL_BANDS = 4
"""Bands of an array that count as one pixel, as in images with colour and transparency."""
PAGES = 1_000
"""Maximum number of smaller versions and masks of its image in a TIFF."""
PADDING = 1 << 20
"""Pixels of tiles that may lie outside of an image, however small it is."""
PACKED = 1 << 16
"""Bytes that a strip or tile may have beyond twice its decompressed size."""
WIDTH, HEIGHT, BITS, COMPRESSION, PHOTOMETRIC = 256, 257, 258, 259, 262
STRIPS, SAMPLES, ROWS, STRIP_BYTES, PLANAR, PREDICTOR = 273, 277, 278, 279, 284, 317
TILE_WIDTH, TILE_HEIGHT, TILES, TILE_BYTES, SAMPLE_FORMAT = 322, 323, 324, 325, 339
"""Tags of TIFF 6.0."""


class Bands(NamedTuple):
    """Bands of a file, from its header."""

    channels: int
    deep: bool
    """More than 8 bits a value."""


def read_array(path: str | os.PathLike[str]) -> Pixels:
    """Pixels [H, W, C] of a `.npy` file of [H, W], [H, W, C] or [C, H, W]; a signal [L] is one row.

    Its header must match the file size and the limit on pixels before anything else is read.
    """
    found = _array_header(path)
    # Not mapped into memory: a file truncated by another program would kill the process.
    values = np.fromfile(path, found.dtype, math.prod(found.shape), offset=found.offset)
    return _channels_last(values.reshape(found.shape, order=found.order), path)


def array_bands(path: str | os.PathLike[str]) -> Bands:
    """Number of channels of a `.npy` file, without reading its pixels."""
    found = _array_header(path)
    return Bands(_image_shape(found.shape, path)[2], found.dtype != np.uint8)


class ArrayHeader(NamedTuple):
    """Header of a `.npy` file."""

    shape: tuple[int, ...]
    order: Literal["C", "F"]
    dtype: np.dtype[Any]
    offset: int
    """Bytes before the values."""


def _array_header(path: str | os.PathLike[str]) -> ArrayHeader:
    """Header of an array; raises for objects and for sizes beyond the limit or the file."""
    name = os.fspath(path)
    with open(path, "rb") as file:
        version = npy.read_magic(file)
        if version not in READERS:
            raise InputError(f"{name}: a .npy file of version {version}; valid: (1, 0) and (2, 0)")
        shape, fortran, dtype = READERS[version](file)
        offset, size = file.tell(), os.fstat(file.fileno()).st_size
    if dtype.kind not in "buif":
        raise InputError(f"{name}: an array of {dtype}; valid: numbers, such as uint8")
    height, width, bands = _image_shape(shape, path)
    limit, pixels = pixel_limit(), height * width * math.ceil(bands / USUAL_BANDS)
    if limit is not None and pixels > limit:
        raise TooLarge(f"{name}: {too_many(pixels, f'{width} x {height} x {bands}')}")
    needed = offset + math.prod(shape) * dtype.itemsize
    if size < needed:
        raise InputError(f"{name}: truncated: {size} bytes; valid: {needed}, as it declares")
    return ArrayHeader(shape, "F" if fortran else "C", dtype, offset)


def _channels_last(array: Pixels, path: str | os.PathLike[str]) -> Pixels:
    if array.ndim <= 2:
        return np.atleast_2d(array)[..., None]
    return np.moveaxis(array, 0, 2) if _bands_first(array.shape, path) else array


def _image_shape(shape: tuple[int, ...], path: str | os.PathLike[str]) -> tuple[int, int, int]:
    """Height, width and bands of an array."""
    if len(shape) not in (1, 2, 3) or 0 in shape:
        raise InputError(
            f"{os.fspath(path)}: an array of shape {shape}; valid: [L], [H, W], [H, W, C] or "
            "[C, H, W]"
        )
    if len(shape) == 1:
        return 1, shape[0], 1
    if len(shape) == 2:
        return shape[0], shape[1], 1
    first, middle, last = shape
    return (middle, last, first) if _bands_first(shape, path) else (first, middle, last)


def _bands_first(shape: tuple[int, ...], path: str | os.PathLike[str]) -> bool:
    """True if an array is [C, H, W]: images are squares, or have fewer bands than pixels."""
    first, middle, last = shape
    if first == middle or middle == last:
        return first != middle
    if middle <= min(first, last) or first == last:
        raise InputError(
            f"{os.fspath(path)}: an array of shape {shape}, whose axis of bands is ambiguous; "
            "valid: [H, W, C] or [C, H, W] of square images, or with C below H and W"
        )
    return first < last


def tiff_bands(path: str | os.PathLike[str]) -> Bands:
    """Bands of the first page of a TIFF."""
    with open(path, "rb") as file:
        tags = _tags(file)
    return Bands(int(tags.get(SAMPLES, 1)), max(_bits(tags)) > 8)


def read_tiff(path: str | os.PathLike[str]) -> Pixels:
    """Pixels [H, W, C] of a TIFF of one page, in the file's own dtype."""
    name = os.fspath(path)
    with open(path, "rb") as file:
        tags = _tags(file)
        _check_one_page(file, tags)
        cells = _cells(tags, _dtype(tags, name), name)
        pixels = [_plane(file, tags, cells, plane) for plane in range(cells.planes)]
    return np.concatenate(pixels, axis=2)


class Cells(NamedTuple):
    """Strips or tiles of a TIFF: all of one size, row after row, plane after plane."""

    image: tuple[int, int]
    """Height and width."""
    cell: tuple[int, int]
    tiled: bool
    planes: int
    bands: int
    """Number of bands in each plane."""
    dtype: np.dtype[Any]
    places: tuple[tuple[int, int], ...]
    """Offset and number of bytes of each cell."""

    @property
    def grid(self) -> tuple[int, int]:
        """Number of cells from top to bottom, and from left to right."""
        (height, width), (rows, columns) = self.image, self.cell
        return math.ceil(height / rows), math.ceil(width / columns)


def _cells(tags: Any, dtype: np.dtype[Any], name: str) -> Cells:
    """Layout declared by the header; raises if it is too large or impossible."""
    height, width, samples = int(tags[HEIGHT]), int(tags[WIDTH]), int(tags.get(SAMPLES, 1))
    tiled, planes = TILES in tags, samples if tags.get(PLANAR, 1) == 2 else 1
    rows = min(int(tags.get(ROWS, height)), height)
    cell = (int(tags[TILE_HEIGHT]), int(tags[TILE_WIDTH])) if tiled else (rows, width)
    if min(height, width, samples, *cell) < 1:
        raise InputError(f"{name}: {width} x {height} x {samples} in parts of {cell}; valid: 1 on")
    _check_values(name, (height, width, samples), cell)
    offsets, sizes = (tags[TILES], tags[TILE_BYTES]) if tiled else (tags[STRIPS], tags[STRIP_BYTES])
    places = tuple(zip(offsets, sizes, strict=False))
    cells = Cells((height, width), cell, tiled, planes, samples // planes, dtype, places)
    needed = cells.grid[0] * cells.grid[1] * planes
    if min(len(offsets), len(sizes)) < needed:
        raise InputError(f"{name}: {len(places)} strips or tiles; valid: {needed}, as it declares")
    return cells


def _check_values(name: str, shape: tuple[int, int, int], cell: tuple[int, int]) -> None:
    """Raise for more values, over all planes and with the tiles' padding, than the pixel limit."""
    limit, values = pixel_limit(), math.prod(shape)
    if limit is None:
        return
    found = " x ".join(map(str, shape))
    if values > limit:
        raise TooLarge(f"{name}: {too_many(values, found)}")
    padded = shape[2] * math.prod(
        math.ceil(side / part) * part for side, part in zip(shape[:2], cell, strict=True)
    )
    if padded > max(limit, PADDING * shape[2]):
        tile = " x ".join(map(str, cell))
        raise TooLarge(f"{name}: {too_many(padded, f'{found} in tiles of {tile}')}")


def _tags(file: Any, page: int | None = None) -> Any:
    """Tags of the first page, or of the page at this place in the file."""
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
    """Raise for several pages; smaller versions and masks of a page, as in maps, do not count."""
    seen = set()
    while tags.next and tags.next not in seen:
        seen.add(tags.next)
        if len(seen) > PAGES:
            raise SeveralFrames(several("TIFF"))
        tags = _tags(file, tags.next)
        if not is_part(tags):
            raise SeveralFrames(several("TIFF"))


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


def _plane(file: Any, tags: Any, cells: Cells, plane: int) -> Pixels:
    """Bands stored together: all of them, or one in a file with separate planes."""
    (height, width), (down, across) = cells.image, cells.grid
    canvas = np.empty((down * cells.cell[0], across * cells.cell[1], cells.bands), cells.dtype)
    for i in range(down * across):
        row, column = divmod(i, across)
        top, left = row * cells.cell[0], column * cells.cell[1]
        rows = cells.cell[0] if cells.tiled else min(cells.cell[0], height - top)
        shape = (rows, cells.cell[1], cells.bands)
        packed = _packed(file, *cells.places[plane * down * across + i], shape, cells.dtype)
        part = _unpack(packed, tags, (rows, shape[1] * shape[2]), cells.dtype).reshape(shape)
        if tags.get(PREDICTOR, 1) == 2:
            part = np.cumsum(part, axis=1, dtype=cells.dtype)
        canvas[top : top + rows, left : left + cells.cell[1]] = part
    return canvas[:height, :width]


def _packed(
    file: Any, offset: int, size: int, shape: tuple[int, int, int], dtype: np.dtype[Any]
) -> bytes:
    """Bytes of one strip or tile; no compression makes data much larger."""
    most = 2 * math.prod(shape) * dtype.itemsize + PACKED
    if size > most:
        raise InputError(f"a strip or tile of {size} bytes; valid: at most {most}")
    file.seek(offset)
    return bytes(file.read(size))


def _unpack(packed: bytes, tags: Any, shape: tuple[int, int], dtype: np.dtype[Any]) -> Pixels:
    """Values of one strip or tile; its compression is decoded by libtiff behind Pillow."""
    if tags.get(PREDICTOR, 1) not in (1, 2):
        raise InputError(f"predictor {tags[PREDICTOR]}; valid: none, or 2 (differences)")
    rows, columns = shape[0], shape[1] * dtype.itemsize
    if tags.get(COMPRESSION, 1) == 1:
        content = np.frombuffer(packed, np.uint8, rows * columns)
    else:
        content = np.frombuffer(_decompress(packed, int(tags[COMPRESSION]), rows, columns), "u1")
    return content.view(dtype.newbyteorder("<" if tags.prefix == b"II" else ">")).reshape(shape)


def _decompress(packed: bytes, compression: int, rows: int, columns: int) -> bytes:
    """Decompress bytes with Pillow, as an 8-bit grey TIFF of one strip."""
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
        STRIPS: 0,  # behind the directory: Pillow adds its offset
    }
    for tag, number in numbers.items():
        tags[tag] = number
    stream = io.BytesIO(b"II*\0\x08\0\0\0" + tags.tobytes(8) + packed)
    with open_image(stream, ("TIFF",)) as image:
        return image.tobytes()
