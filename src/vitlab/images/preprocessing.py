"""Convert an image file to model input: size, crop, interpolation, mean and deviation.

NumPy and Pillow only, so that an exported model needs no torch to prepare its input.
"""

import math
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from vitlab.config import from_dict, to_dict
from vitlab.errors import ConfigError, InputError, SeveralFrames, TooLarge, UnknownName
from vitlab.images.bands import read_array, read_tiff, tiff_bands
from vitlab.images.open import UNREADABLE, check_pixels, check_single, is_array, is_tiff, open_image

Interpolation = Literal["nearest", "bilinear", "bicubic", "lanczos"]
Source = Image.Image | NDArray[Any] | str | os.PathLike[str]

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
HALF = (0.5, 0.5, 0.5)

FILTERS = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}
MODES = {1: "L", 3: "RGB"}
ORIENTATION = 0x0112
"""EXIF tag of the camera's orientation; 1 is upright."""


@dataclass(frozen=True, kw_only=True, slots=True)
class View:
    """Part of an image used by the model: a crop of the resized image; all (height, width)."""

    image: tuple[int, int]
    resized: tuple[int, int]
    corner: tuple[int, int]
    """Row and column of the crop's first pixel in the resized image."""
    size: tuple[int, int]
    """Size of the crop, which is the model input."""

    @property
    def box(self) -> tuple[float, float, float, float]:
        """Top, left, bottom and right of the model's view, in pixels of the image."""
        sides = tuple(zip(self.image, self.resized, self.corner, self.size, strict=True))
        (top, bottom), (left, right) = (
            (max(0.0, first * side / resized), min(float(side), (first + size) * side / resized))
            for side, resized, first, size in sides
        )
        return top, left, bottom, right

    def seen(self, axis: Literal[0, 1]) -> NDArray[np.float64]:
        """Position of the centre of each row (0) or column (1) of the image, in model pixels.

        Values below 0 and above the size are outside of the model's view.
        """
        middles = np.arange(self.image[axis], dtype=np.float64) + 0.5
        return np.asarray(middles * (self.resized[axis] / self.image[axis]) - self.corner[axis])


@dataclass(frozen=True, kw_only=True, slots=True)
class Preprocessing:
    """Conversion of an image to model input; stored in weights, bundles and exports."""

    size: tuple[int, int]
    """Height and width of the model input."""
    crop: float = 1.0
    """Part of the resized image's side that the centre crop keeps: 0.875 is 224 of 256."""
    interpolation: Interpolation = "bicubic"
    mean: tuple[float, ...]
    """Per channel, of values in [0, 1]; its length is the number of channels."""
    std: tuple[float, ...]
    keep_aspect: bool = True
    """Resize the shorter side, then crop (torchvision, timm), or resize to the exact size (JAX)."""
    white: float | None = None
    """Value mapped to the brightest of 8 bits, for deeper files; None: the largest of 16 bits."""

    def __post_init__(self) -> None:
        if len(self.size) != 2 or min(self.size) < 1:
            raise ConfigError(f"size {self.size} is not a positive (height, width)")
        if not 0.0 < self.crop <= 1.0:
            raise ConfigError(f"crop {self.crop} is not in (0, 1]")
        if self.interpolation not in get_args(Interpolation):
            raise UnknownName("interpolation", str(self.interpolation), get_args(Interpolation))
        if not self.mean or len(self.mean) != len(self.std):
            raise ConfigError(
                f"mean {self.mean} and std {self.std} do not have one number per channel each"
            )
        if not all(map(math.isfinite, self.mean)):
            raise ConfigError(f"mean {self.mean} is not finite")
        if not all(0.0 < value < math.inf for value in self.std):
            raise ConfigError(f"std {self.std} is not positive and finite")
        if self.white is not None and not 0.0 < self.white < math.inf:
            raise ConfigError(f"white {self.white} is not positive and finite")

    @property
    def channels(self) -> int:
        """Number of channels that `apply` returns."""
        return len(self.mean)

    def apply(self, image: Source) -> NDArray[np.float32]:
        """Image as float32 `[C, H, W]`, resized, cropped and normalised."""
        return self.normalise(self.pixels(image))

    def normalise(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Normalise 8-bit pixels `[..., C, H, W]` to model input."""
        mean, std = (
            np.array(values, np.float32)[:, None, None] for values in (self.mean, self.std)
        )
        # This order and precision equals torchvision's ToTensor and Normalize, bit for bit.
        images = pixels.astype(np.float32)
        images /= np.float32(255)
        images -= mean
        images /= std
        return images

    def pixels(self, image: Source) -> NDArray[np.uint8]:
        """Image as 8 bits `[C, H, W]`, resized and cropped; an engine normalises it."""
        return self.fit(self.read(image))

    def fit(self, images: Sequence[Image.Image]) -> NDArray[np.uint8]:
        """Result of `read` as 8 bits `[C, H, W]`, resized and cropped."""
        bands = [np.asarray(self._fit(band)) for band in images]
        pixels = bands[0] if len(bands) == 1 else np.stack(bands, axis=-1)
        pixels = pixels.reshape(*self.size, self.channels).transpose(2, 0, 1)
        return np.ascontiguousarray(pixels)

    def read(self, image: Source) -> list[Image.Image]:
        """Image at its own size, 8 bits a value: grey or RGB, or one grey image per channel."""
        return read_bands(image, self.channels, self.white)

    def by_path(self, path: str | os.PathLike[str]) -> bool:
        """True if a file must be read by its path: Pillow loses its channels or its depth."""
        deep = self.white is not None and is_tiff(path)
        return self.channels not in MODES or is_array(path) or deep

    def resized(self, size: int | tuple[int, int]) -> "Preprocessing":
        """Same preprocessing for another image size."""
        return replace(self, size=(size, size) if isinstance(size, int) else size)

    def to_json(self) -> dict[str, Any]:
        """Fields as JSON-serialisable values."""
        return to_dict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Preprocessing":
        """Preprocessing from the output of `to_json`."""
        return from_dict(cls, data)

    def view(self, image: tuple[int, int]) -> "View":
        """Location of the model's pixels in an image of this (height, width)."""
        # The small addend keeps crop = 224/232 at 232 where the division gives 231.99….
        height, width = (int(side / self.crop + 1e-6) for side in self.size)
        if self.keep_aspect:
            height, width = cover(image, (height, width))
        top = round((height - self.size[0]) / 2.0)
        left = round((width - self.size[1]) / 2.0)
        return View(image=image, resized=(height, width), corner=(top, left), size=self.size)

    def _fit(self, image: Image.Image) -> Image.Image:
        """Central `size` pixels of the resized image."""
        view = self.view((image.height, image.width))
        (height, width), (top, left) = view.resized, view.corner
        check_pixels(f"{image.width} x {image.height} image resized", height, width, least=1)
        image = image.resize((width, height), FILTERS[self.interpolation])
        return image.crop((left, top, left + self.size[1], top + self.size[0]))


def cover(image: tuple[int, int], target: tuple[int, int]) -> tuple[int, int]:
    """Smallest (height, width) of the image's proportions that covers the target."""
    if target[0] * image[1] >= target[1] * image[0]:
        return target[0], int(target[0] * image[1] / image[0])
    return int(target[1] * image[0] / image[1]), target[1]


def read_bands(source: Source, channels: int, white: float | None = None) -> list[Image.Image]:
    """One 8-bit grey or RGB image, or one grey image per channel of any other number of them."""
    if isinstance(source, np.ndarray):
        return _array_bands(source, channels, white, "array")
    if isinstance(source, Image.Image):
        with _readable("image"):
            return _image_bands(source, channels, white, "image")
    if not isinstance(source, str | os.PathLike):
        raise TypeError(
            f"{type(source).__name__} is not an image; valid: a path, a PIL image, or a NumPy "
            "array [H, W, C] or [H, W]"
        )
    name = os.fspath(source)
    with _readable(name):
        if is_array(name):
            return _array_bands(read_array(name), channels, white, name)
        unusual = channels not in MODES or white is not None
        if unusual and is_tiff(name) and tiff_bands(name).channels == channels:
            return _array_bands(read_tiff(name), channels, white, name)
        with _open(name) as image:
            check_single(image)
            return _image_bands(image, channels, white, name)


def _image_bands(
    image: Image.Image, channels: int, white: float | None, name: str
) -> list[Image.Image]:
    if channels in MODES:
        return [_convert(image, channels, name, white)]
    check_pixels(name, image.height, image.width)
    if channels == 4 and image.mode != "CMYK":
        image = image.convert("RGBA")
    bands = len(image.getbands())
    if bands != channels:
        raise InputError(f"{name}: an image of {bands} channels; valid: {channels}")
    return list(_upright(image).split())


@contextmanager
def _readable(name: str) -> Iterator[None]:
    """Convert any decoding error to one line."""
    try:
        yield
    except SeveralFrames as error:
        raise SeveralFrames(f"{name}: {error}") from error
    except (InputError, ConfigError):
        raise
    except FileNotFoundError:
        raise InputError(f"{name}: no such file") from None
    except UnidentifiedImageError as error:
        raise InputError(f"{name}: {error}") from error
    except Exception as error:  # decoders of damaged files raise nearly anything
        reason = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"{name}: {UNREADABLE}{reason})") from error


def _open(name: str) -> Image.Image:
    """File with its header read; its size is checked before the rest is read."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        try:
            return open_image(name)
        except TooLarge as error:
            raise TooLarge(f"{name}: {error}") from error


def _upright(image: Image.Image) -> Image.Image:
    return ImageOps.exif_transpose(image) if image.getexif().get(ORIENTATION, 1) != 1 else image


def _convert(
    image: Image.Image, channels: int, name: str, white: float | None = None
) -> Image.Image:
    """Upright image with 8 bits per channel; 16 bits are scaled, transparency becomes white."""
    check_pixels(name, image.height, image.width)
    image = _upright(image)
    if image.mode == "F" or image.mode.startswith("I"):
        image = Image.fromarray(_eight_bits(np.asarray(image), name, white))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert(MODES[channels])


def _array_bands(
    array: NDArray[Any], channels: int, white: float | None, name: str
) -> list[Image.Image]:
    pixels = array[..., None] if array.ndim == 2 else array
    valid = (1, 3, 4) if channels in MODES else (channels,)
    if pixels.ndim != 3 or pixels.shape[2] not in valid:
        choices = " or ".join(map(str, valid))
        raise InputError(f"{name} has shape {array.shape}; valid: [H, W, C] with C = {choices}")
    check_pixels(name, *pixels.shape[:2])
    pixels = _eight_bits(pixels, name, white)
    if channels not in MODES or pixels.shape[2] == 1:
        bands = [Image.fromarray(np.ascontiguousarray(band)) for band in pixels.transpose(2, 0, 1)]
        return [_convert(bands[0], channels, name)] if channels in MODES else bands
    return [_convert(Image.fromarray(np.ascontiguousarray(pixels)), channels, name)]


def _eight_bits(pixels: NDArray[Any], name: str, white: float | None) -> NDArray[np.uint8]:
    """Convert pixels to 8 bits; 16 bits (also Pillow's 32-bit `I`) are scaled.

    With `white`, values of any dtype are scaled from 0 to `white`, and clipped above it.
    """
    kind = pixels.dtype.newbyteorder("=")
    if kind == np.uint8:
        return pixels
    if white is not None and kind.kind in "uif":
        lowest = float(pixels.min())
        if not 0.0 <= lowest < math.inf:
            raise InputError(f"{name}: values from {lowest:g}; valid: 0 to {white:g} and above")
        return np.rint(np.minimum(pixels / white, 1.0) * 255).astype(np.uint8)
    if kind not in (np.uint16, np.int32):
        raise InputError(f"{name}: pixels are {pixels.dtype}; valid: uint8 or uint16")
    if pixels.min() < 0 or pixels.max() > 65535:
        raise InputError(
            f"{name}: values from {pixels.min()} to {pixels.max()}; valid: 0 to 65535 (16 bits)"
        )
    return ((pixels.astype(np.int64) + 128) // 257).astype(np.uint8)
