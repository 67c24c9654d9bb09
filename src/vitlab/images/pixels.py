"""Convert any representation of one image to 8-bit model input; imports no torch.

Input without content or with several images raises: a single pixel, an animation, a document of
several pages.
"""

import io
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitlab.errors import InputError, TooLarge
from vitlab.images.open import (
    LEAST,
    Readable,
    StoredImage,
    as_file,
    bomb_pixels,
    check_regular,
    check_single,
    limited,
    open_image,
    reason_of,
    too_many,
)
from vitlab.images.preprocessing import Preprocessing, Source

Pixels = NDArray[np.uint8]
ImageSource = Source | StoredImage | io.BytesIO
Given = ImageSource | bytes | bytearray | memoryview
"""Types that public functions accept as one image."""
SINGLE = (str, bytes, bytearray, memoryview, os.PathLike, Image.Image, io.IOBase, Mapping)
"""Types that can be iterated over, or opened, and are never several images."""
VALID = (
    "a path, a PIL image, a NumPy array [H, W, C] or [H, W] of uint8, the bytes of one image, "
    "or a list of these"
)


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Decoded:
    """An image that was read before, with where it came from."""

    source: ImageSource
    pixels: Pixels


def read_image(source: ImageSource | Decoded, preprocessing: Preprocessing) -> Pixels:
    """Pixels [C, H, W]; raises InputError with only the reason if they cannot be read."""
    if isinstance(source, Decoded):
        return source.pixels
    return read_both(source, preprocessing)[1]


def read_both(
    source: ImageSource, preprocessing: Preprocessing
) -> tuple[list[Image.Image], Pixels]:
    """Whole image as stored (see `Preprocessing.read`), and its pixels [C, H, W]."""
    try:
        whole = _read(source, preprocessing)
        return whole, preprocessing.fit(whole)
    except Exception as error:  # decoders of damaged files raise nearly anything
        raise InputError(_reason(error, source)) from error


def shown(whole: Sequence[Image.Image]) -> Image.Image:
    """Image for display: of more than three channels, the first three as red, green, blue."""
    if len(whole) == 1:
        return whole[0]
    return Image.merge("RGB", whole[:3]) if len(whole) > 2 else whole[0]


def as_image(image: object, preprocessing: Preprocessing) -> ImageSource:
    """One image ready to be read, bytes as a stream; raises TypeError for anything else."""
    if isinstance(image, bytes | bytearray | memoryview):
        return io.BytesIO(image)
    if isinstance(image, np.ndarray):
        return _checked_array(image, preprocessing)
    if isinstance(image, str | os.PathLike | Image.Image | io.BytesIO):
        return image
    raise TypeError(f"{_kind(image)} is not an image; valid: {VALID}")


def is_single(images: object) -> bool:
    """True if an argument is one image, or no image at all."""
    several = isinstance(images, Iterable) and not isinstance(images, SINGLE)
    return not several or hasattr(images, "__array__")


def as_images(images: object, preprocessing: Preprocessing) -> Iterable[ImageSource]:
    """One image or several, each converted by `as_picture`; raises TypeError for anything else.

    All of a list are checked before any is read; those of another iterable one by one.
    """
    if is_single(images):
        return [as_image(images, preprocessing)]
    assert isinstance(images, Iterable)
    checked = (as_image(image, preprocessing) for image in images)
    return list(checked) if isinstance(images, list | tuple) else checked


def _checked_array(array: NDArray[Any], preprocessing: Preprocessing) -> NDArray[Any]:
    """The array, if it is [H, W, C] or [H, W] of a dtype that holds pixels."""
    channels = preprocessing.channels
    valid = (1, 3, 4) if channels in (1, 3) else (channels,)
    bands = array.shape[2] if array.ndim == 3 else 1
    found = f"array of shape {array.shape} and {array.dtype}"
    if array.ndim not in (2, 3) or bands not in valid or 0 in array.shape:
        choices = " or ".join(map(str, valid))
        raise TypeError(f"{found}; valid: [H, W, C] with C = {choices}, or a list of such arrays")
    if array.ndim == 3 and array.shape[0] == bands > 1:
        raise TypeError(f"{found} may be [H, W, C] or [C, H, W]; valid: a PIL image or a file")
    measured = preprocessing.white is not None and array.dtype.kind in "uif"
    if not measured and array.dtype.name not in ("uint8", "uint16"):
        raise TypeError(f"{found}; valid: uint8 or uint16")
    return array


def _kind(image: object) -> str:
    """Type of a wrong argument, with its shape if it has one."""
    shape = getattr(image, "shape", None)
    return type(image).__name__ + ("" if shape is None else f" of shape {tuple(shape)}")


def path_of(source: ImageSource | Decoded) -> str | None:
    """Name of the image in a record: its path, `-` for bytes, None for data in memory."""
    if isinstance(source, Decoded):
        return path_of(source.source)
    if isinstance(source, io.BytesIO):
        return "-"
    return os.fspath(source) if isinstance(source, str | os.PathLike) else None


@contextmanager
def reading(max_pixels: int | None = None) -> Iterator[None]:
    """Read images of up to `max_pixels` (None: the usual limit) without Pillow's warnings.

    Used around the threads that read, not in them: warnings and the limit are per process.
    """
    with warnings.catch_warnings(), limited(max_pixels):
        warnings.filterwarnings("ignore", module=r"PIL\b")  # about damage that it can repair
        yield


def _read(source: ImageSource, preprocessing: Preprocessing) -> list[Image.Image]:
    if isinstance(source, np.ndarray | Image.Image):
        return preprocessing.read(source)
    if isinstance(source, StoredImage) and preprocessing.by_path(source):
        with as_file(source) as path:
            return preprocessing.read(path)
    if not isinstance(source, io.BytesIO | StoredImage):
        _check_file(os.fspath(source))
        if preprocessing.by_path(source):
            return preprocessing.read(source)
    with open_image(_content(source)) as image:
        _check_one(image)
        return preprocessing.read(image)


def _content(source: str | os.PathLike[str] | StoredImage | io.BytesIO) -> Readable:
    """File or bytes that are read from their start, by each caller from its own."""
    if isinstance(source, StoredImage):
        return io.BytesIO(source.read())
    return io.BytesIO(source.getvalue()) if isinstance(source, io.BytesIO) else source


def _check_file(path: str) -> None:
    if os.path.isdir(path):
        os.scandir(path).close()  # raises with the reason for a folder that cannot be opened
    check_regular(path)


def _check_one(image: Image.Image) -> None:
    limit = Image.MAX_IMAGE_PIXELS
    if limit is not None and image.height * image.width > limit:
        found = f"{image.width} x {image.height}"
        raise TooLarge(too_many(image.height * image.width, found))
    if image.height * image.width < LEAST:
        raise InputError(f"{image.width} x {image.height} pixels; valid: at least {LEAST} in all")
    check_single(image)


def _reason(error: Exception, source: ImageSource) -> str:
    if isinstance(error, Image.DecompressionBombError | Image.DecompressionBombWarning):
        return too_many(bomb_pixels(error))
    return reason_of(error, path_of(source) or "image")
