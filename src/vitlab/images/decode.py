"""One image file to 8-bit pixels of the size that a model reads.

Imports torch only to crop at random: processes that read whole images start without it.
"""

import errno
import math
import os
import stat
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError
from PIL.JpegImagePlugin import JpegImageFile

from vitlab.config import from_dict, to_dict
from vitlab.errors import InputError
from vitlab.images.boxes import crop_box
from vitlab.images.open import LEAST, check_single, open_image, pixel_limit
from vitlab.images.preprocessing import (
    FILTERS,
    MODES,
    ORIENTATION,
    UNREADABLE,
    Interpolation,
    Preprocessing,
)

Pixels = NDArray[np.uint8]
UPRIGHT: Mapping[int, Callable[[Pixels], Pixels]] = {
    2: lambda pixels: pixels[:, ::-1],
    3: lambda pixels: pixels[::-1, ::-1],
    4: lambda pixels: pixels[::-1],
    5: lambda pixels: pixels.swapaxes(0, 1),
    6: lambda pixels: np.rot90(pixels, -1),
    7: lambda pixels: np.rot90(pixels[::-1], 1),
    8: lambda pixels: np.rot90(pixels, 1),
}
"""What brings stored pixels [H, W, C] upright, by their EXIF orientation."""
LYING = range(5, 9)
"""Orientations of images that are stored on their side."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Decoder:
    """How files are read; the same in every process that reads them."""

    preprocessing: Preprocessing
    """Size and interpolation, and what is read without a random crop; mean and std are not."""
    area: tuple[float, float] | None = None
    """Share of the area that a random resized crop keeps; None: read as when predicting."""
    ratio: tuple[float, float] = (1.0, 1.0)
    """Width / height of the crop."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of every result."""
        return (self.preprocessing.channels, *self.preprocessing.size)

    def read(self, path: str, seed: int) -> Pixels:
        """The pixels, [C, H, W]; InputError with the reason alone when there are none to read."""
        try:
            check_regular(path)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of Pillow about damage that it can repair
                pixels = self._pixels(path, seed)
        except Exception as error:  # decoders of damaged files raise nearly anything
            raise InputError(reason_of(error, path)) from error
        channels, height, width = self.shape
        return np.ascontiguousarray(pixels.reshape(height, width, channels).transpose(2, 0, 1))

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON-able values."""
        return to_dict(self)

    @classmethod
    def from_json(cls, data: Any) -> "Decoder":
        """What `to_json` described."""
        return from_dict(cls, data)

    def _pixels(self, path: str, seed: int) -> Pixels:
        if self.preprocessing.by_path(path):
            bands = self.preprocessing.read(path)
            fitted = [self._fit_band(band, seed) for band in bands]
            return fitted[0] if len(bands) == 1 else np.stack(fitted, axis=-1)
        with open_image(path) as image:
            check_single(image)
            return self._fit(image, seed)

    def _fit_band(self, band: Image.Image, seed: int) -> Pixels:
        """The same part of every band: the seed and the size decide it."""
        if self.area is None:
            return np.asarray(self.preprocessing._fit(band))
        pixels = self._crop(band, seed, lying=False)
        return pixels[..., 0] if band.mode == "L" and pixels.ndim == 3 else pixels

    def _fit(self, image: Image.Image, seed: int) -> Pixels:
        if self.area is None:
            return np.asarray(self.preprocessing._fit(self.preprocessing.read(image)[0]))
        if not (isinstance(image, JpegImageFile) and plain(image)):
            return self._crop(self.preprocessing.read(image)[0], seed, lying=False)
        orientation = image.getexif().get(ORIENTATION, 1)
        pixels = self._crop(image, seed, lying=orientation in LYING)
        return UPRIGHT[orientation](pixels) if orientation in UPRIGHT else pixels

    def _crop(self, image: Image.Image, seed: int, *, lying: bool) -> Pixels:
        """A random part of the image as it is stored, resized."""
        assert self.area is not None
        mode = MODES.get(self.preprocessing.channels, "L")
        height, width = self.preprocessing.size
        low, high = self.ratio
        if lying:
            height, width, low, high = width, height, 1 / high, 1 / low
        size = (image.height, image.width)
        box = crop_box(size, area=self.area, ratio=(low, high), seed=seed)
        rows, columns = box.bottom - box.top, box.right - box.left
        # Of the sizes that a JPEG can be decoded at, the smallest in which the crop still covers.
        drafted = image.draft(mode, (-(-size[1] * width // columns), -(-size[0] * height // rows)))
        scale = 1.0 if drafted is None else drafted[1][2] / size[1]
        corner = (math.floor(box.left * scale), math.floor(box.top * scale))
        part = image.crop((*corner, math.ceil(box.right * scale), math.ceil(box.bottom * scale)))
        if part.mode != mode:
            part = part.convert(mode)
        return resized(part, (height, width), self.preprocessing.interpolation)


def resized(image: Image.Image, size: tuple[int, int], interpolation: Interpolation) -> Pixels:
    """Pixels [H, W] or [H, W, C] at another size, antialiased: Pillow's within a level."""
    if interpolation in ("bilinear", "bicubic"):
        # Pillow has no vector instructions; torch has, for 8 bits and on some processors.
        import torch

        if torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512"):
            pixels = torch.from_numpy(np.array(image)).view(image.height, image.width, -1)
            scaled = torch.nn.functional.interpolate(
                pixels.permute(2, 0, 1)[None], size, mode=interpolation, antialias=True
            )
            return scaled[0].permute(1, 2, 0).numpy()
    return np.asarray(image.resize(size[::-1], FILTERS[interpolation]))


def check_regular(path: str) -> None:
    """Refuse what would block or has no end: pipes, devices, sockets; and folders."""
    found = os.stat(path)
    if not stat.S_ISREG(found.st_mode):
        raise InputError("a folder" if stat.S_ISDIR(found.st_mode) else "not a regular file")
    if not found.st_size:
        raise InputError("an empty file")


def plain(image: JpegImageFile) -> bool:
    """Whether a JPEG needs none of the general path's conversions, nor its complaints."""
    limit = pixel_limit()
    pixels = image.height * image.width
    return image.mode in MODES.values() and pixels >= LEAST and (limit is None or pixels <= limit)


def reason_of(error: Exception, name: str = "image") -> str:
    """One line about what is wrong with a file, without the name that it was read by.

    Too many open files are no fault of this one: that error is raised again.
    """
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        raise error
    if isinstance(error, UnidentifiedImageError):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    text = " ".join(str(error).removeprefix(f"{name}: ").removeprefix("image: ").split())
    if text.startswith(UNREADABLE):  # the same words whichever way a file was read
        text = text[len(UNREADABLE) : -1]
    return text or type(error).__name__
