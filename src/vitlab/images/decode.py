"""Decode one image file to 8-bit pixels of the model's input size, whole or a random crop of it.

Imports torch only for random crops: processes that read whole images start without it.
"""

import math
import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile

from vitlab.config import from_dict, to_dict
from vitlab.errors import InputError
from vitlab.images.open import (
    LEAST,
    StoredImage,
    as_file,
    check_regular,
    check_single,
    open_image,
    opened,
    pixel_limit,
    reason_of,
)
from vitlab.images.preprocessing import FILTERS, MODES, ORIENTATION, Interpolation, Preprocessing

ATTEMPTS = 10


class Box(NamedTuple):
    """Pixels from `top` to before `bottom` and from `left` to before `right`."""

    top: int
    left: int
    bottom: int
    right: int


def random_box(
    size: tuple[int, int],
    *,
    area: tuple[float, float],
    ratio: tuple[float, float],
    draw: Random,
) -> Box | None:
    """A rectangle with a share of the area and a width / height within bounds; None: none fitted.

    The share is drawn uniformly and the ratio log-uniformly, as in "Inception" cropping.
    """
    height, width = size
    for _ in range(ATTEMPTS):
        pixels = _between(*area, draw.random()) * height * width
        proportion = math.exp(_between(math.log(ratio[0]), math.log(ratio[1]), draw.random()))
        rows, columns = round((pixels / proportion) ** 0.5), round((pixels * proportion) ** 0.5)
        if 0 < rows <= height and 0 < columns <= width:
            top = int(draw.random() * (height - rows + 1))
            left = int(draw.random() * (width - columns + 1))
            return Box(top, left, top + rows, left + columns)
    return None


def central_box(size: tuple[int, int], ratio: tuple[float, float]) -> Box:
    """The largest centred rectangle whose width / height is within bounds."""
    height, width = size
    columns = min(width, max(1, round(height * ratio[1])))
    rows = min(height, max(1, round(width / ratio[0])))
    top, left = (height - rows) // 2, (width - columns) // 2
    return Box(top, left, top + rows, left + columns)


def crop_box(
    size: tuple[int, int], *, area: tuple[float, float], ratio: tuple[float, float], seed: int
) -> Box:
    """Region of a random resized crop: a random rectangle, else the largest central one."""
    found = random_box(size, area=area, ratio=ratio, draw=Random(seed))
    return central_box(size, ratio) if found is None else found


def _between(low: float, high: float, share: float) -> float:
    return low + (high - low) * share


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
"""Transformation of stored pixels [H, W, C] to upright ones, by EXIF orientation."""
LYING = range(5, 9)
"""Orientations of images stored on their side."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Decoder:
    """Settings for reading files; the same in every process that reads them."""

    preprocessing: Preprocessing
    """Size, interpolation, and the region without a random crop; mean and std are not used."""
    area: tuple[float, float] | None = None
    """Share of the area that a random resized crop keeps; None: read as in prediction."""
    ratio: tuple[float, float] = (1.0, 1.0)
    """Width / height of the crop."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of every result."""
        return (self.preprocessing.channels, *self.preprocessing.size)

    def read(self, source: str | StoredImage, seed: int) -> Pixels:
        """Pixels, [C, H, W]; raises InputError with only the reason if they cannot be read."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Pillow's, about damage that it can repair
                pixels = self._pixels(source, seed)
        except Exception as error:  # decoders of damaged files raise nearly anything
            raise InputError(reason_of(error, os.fspath(source))) from error
        channels, height, width = self.shape
        return np.ascontiguousarray(pixels.reshape(height, width, channels).transpose(2, 0, 1))

    def to_json(self) -> dict[str, Any]:
        """Fields as JSON-serialisable values."""
        return to_dict(self)

    @classmethod
    def from_json(cls, data: Any) -> "Decoder":
        """Decoder from the output of `to_json`."""
        return from_dict(cls, data)

    def _pixels(self, source: str | StoredImage, seed: int) -> Pixels:
        if self.preprocessing.by_path(source):
            with as_file(source) as path:
                check_regular(path)
                bands = self.preprocessing.read(path)
            fitted = [self._fit_band(band, seed) for band in bands]
            return fitted[0] if len(bands) == 1 else np.stack(fitted, axis=-1)
        with open_image(opened(source)) as image:
            check_single(image)
            return self._fit(image, seed)

    def _fit_band(self, band: Image.Image, seed: int) -> Pixels:
        """Resize one band; seed and size choose the same region in every band."""
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
        """Random crop of the image as stored, resized."""
        assert self.area is not None
        mode = MODES.get(self.preprocessing.channels, "L")
        height, width = self.preprocessing.size
        low, high = self.ratio
        if lying:
            height, width, low, high = width, height, 1 / high, 1 / low
        size = (image.height, image.width)
        box = crop_box(size, area=self.area, ratio=(low, high), seed=seed)
        rows, columns = box.bottom - box.top, box.right - box.left
        # The smallest size at which a JPEG can be decoded and the crop still has enough pixels.
        drafted = image.draft(mode, (-(-size[1] * width // columns), -(-size[0] * height // rows)))
        scale = 1.0 if drafted is None else drafted[1][2] / size[1]
        corner = (math.floor(box.left * scale), math.floor(box.top * scale))
        part = image.crop((*corner, math.ceil(box.right * scale), math.ceil(box.bottom * scale)))
        if part.mode != mode:
            part = part.convert(mode)
        return resized(part, (height, width), self.preprocessing.interpolation)


def resized(image: Image.Image, size: tuple[int, int], interpolation: Interpolation) -> Pixels:
    """Pixels [H, W] or [H, W, C] resized with antialiasing; within one level of Pillow's result."""
    if interpolation in ("bilinear", "bicubic"):
        # Pillow has no vector instructions; torch has them, for 8 bits and on some processors.
        import torch

        if torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512"):
            pixels = torch.from_numpy(np.array(image)).view(image.height, image.width, -1)
            scaled = torch.nn.functional.interpolate(
                pixels.permute(2, 0, 1)[None], size, mode=interpolation, antialias=True
            )
            return scaled[0].permute(1, 2, 0).numpy()
    return np.asarray(image.resize(size[::-1], FILTERS[interpolation]))


def plain(image: JpegImageFile) -> bool:
    """True if a JPEG needs no conversions or checks of the general path."""
    limit = pixel_limit()
    pixels = image.height * image.width
    return image.mode in MODES.values() and pixels >= LEAST and (limit is None or pixels <= limit)
