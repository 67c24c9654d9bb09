"""Anything that holds one picture to the 8-bit pixels that a model reads; imports no torch.

What shows nothing or does not say which picture is meant is refused: a single pixel, an animation,
a document of several pages.
"""

import io
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitlab.data.decode import check_regular, reason_of
from vitlab.errors import InputError
from vitlab.image_file import (
    LEAST,
    bomb_pixels,
    check_single,
    limited,
    open_image,
    too_many,
)
from vitlab.preprocessing import Preprocessing, Source

Pixels = NDArray[np.uint8]
Picture = Source | io.BytesIO


def read_picture(source: Picture, preprocessing: Preprocessing) -> Pixels:
    """The pixels [C, H, W]; InputError with the reason alone when there are none to read."""
    return read_both(source, preprocessing)[1]


def read_both(source: Picture, preprocessing: Preprocessing) -> tuple[list[Image.Image], Pixels]:
    """The picture as it is, whole (see `Preprocessing.read`), and the pixels [C, H, W] of it."""
    try:
        whole = _read(source, preprocessing)
        return whole, preprocessing.fit(whole)
    except Exception as error:  # decoders of damaged files raise nearly anything
        raise InputError(_reason(error, source)) from error


def path_of(source: Picture) -> str | None:
    """What a record calls the picture: its path, `-` for bytes, nothing for what is in memory."""
    if isinstance(source, io.BytesIO):
        return "-"
    return os.fspath(source) if isinstance(source, str | os.PathLike) else None


@contextmanager
def reading(max_pixels: int | None = None) -> Iterator[None]:
    """Read pictures of up to so many pixels (None: the usual limit) without Pillow's warnings.

    Around the threads that read, not in them: warnings and the limit belong to the process.
    """
    with warnings.catch_warnings(), limited(max_pixels):
        warnings.filterwarnings("ignore", module=r"PIL\b")  # about damage that it can repair
        yield


def _read(source: Picture, preprocessing: Preprocessing) -> list[Image.Image]:
    if isinstance(source, np.ndarray | Image.Image):
        return preprocessing.read(source)
    if not isinstance(source, io.BytesIO):
        _check_file(os.fspath(source))
        if preprocessing.by_path(source):
            return preprocessing.read(source)
    file = io.BytesIO(source.getvalue()) if isinstance(source, io.BytesIO) else source
    with open_image(file) as image:
        _check_one(image)
        return preprocessing.read(image)


def _check_file(path: str) -> None:
    if os.path.isdir(path):
        os.scandir(path).close()  # a folder that cannot be opened says why
    check_regular(path)


def _check_one(image: Image.Image) -> None:
    limit = Image.MAX_IMAGE_PIXELS
    if limit is not None and image.height * image.width > limit:
        found = f"{image.height} x {image.width}"
        raise InputError(too_many(image.height * image.width, found))
    if image.height * image.width < LEAST:
        raise InputError(f"{image.height} x {image.width} pixels; valid: at least {LEAST} in all")
    check_single(image)


def _reason(error: Exception, source: Picture) -> str:
    if isinstance(error, Image.DecompressionBombError | Image.DecompressionBombWarning):
        return too_many(bomb_pixels(error))
    return reason_of(error, path_of(source) or "image")
