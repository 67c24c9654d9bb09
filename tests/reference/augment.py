"""Augmentation of one image at a time: Pillow where Pillow defines it, plain loops elsewhere."""

import math

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageEnhance, ImageOps

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float64]


def picture(image: Bytes) -> Image.Image:
    """An image [C, H, W] as Pillow's."""
    return Image.fromarray(np.ascontiguousarray(image.transpose(1, 2, 0)).squeeze())


def array(image: Image.Image) -> Bytes:
    """Pillow's image as [C, H, W]."""
    pixels = np.asarray(image)
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def shifted(image: Bytes, down: int, right: int) -> Bytes:
    """A crop of the padded image."""
    room = max(abs(down), abs(right))
    padded = np.pad(image, ((0, 0), (room, room), (room, room)), mode="reflect")
    height, width = image.shape[1:]
    top, left = room - down, room - right
    return padded[:, top : top + height, left : left + width]


def resized_crop(image: Bytes, box: tuple[int, int, int, int]) -> Bytes:
    """Pillow's bilinear resize of a part."""
    top, left, bottom, right = box
    height, width = image.shape[1:]
    part = (left, top, right, bottom)
    return array(picture(image).resize((width, height), Image.Resampling.BILINEAR, box=part))


def in_box(y: int, x: int, box: tuple[int, int, int, int]) -> bool:
    """Whether a pixel lies in (top, left, bottom, right)."""
    top, left, bottom, right = box
    return top <= y < bottom and left <= x < right


def blanked(image: Floats, box: tuple[int, int, int, int]) -> Floats:
    """Zero inside a box."""
    result = image.copy()
    for y in range(image.shape[1]):
        for x in range(image.shape[2]):
            if in_box(y, x, box):
                result[:, y, x] = 0
    return result


def cutmix(image: Floats, other: Floats, box: tuple[int, int, int, int]) -> tuple[Floats, float]:
    """The image with the other's pixels inside a box, and the share of its own pixels left."""
    result, kept = image.copy(), 0
    for y in range(image.shape[1]):
        for x in range(image.shape[2]):
            if in_box(y, x, box):
                result[:, y, x] = other[:, y, x]
            else:
                kept += 1
    return result, kept / (image.shape[1] * image.shape[2])


def coefficients(name: str, strength: float, height: int, width: int) -> tuple[float, ...]:
    """The six numbers that Pillow's affine transform takes."""
    if name == "shear_x":
        return (1, strength, 0, 0, 1, 0)
    if name == "shear_y":
        return (1, 0, 0, strength, 1, 0)
    if name == "translate_x":
        return (1, 0, int(strength), 0, 1, 0)
    if name == "translate_y":
        return (1, 0, 0, 0, 1, int(strength))
    assert name == "rotate"
    angle = math.radians(strength)
    a, b, d, e = math.cos(angle), -math.sin(angle), math.sin(angle), math.cos(angle)
    x, y = width / 2, height / 2
    return (a, b, x - a * x - b * y, d, e, y - d * x - e * y)


GEOMETRIC = ("shear_x", "shear_y", "translate_x", "translate_y", "rotate")


def moved(image: Bytes, name: str, strength: float) -> tuple[Bytes, NDArray[np.bool_]]:
    """A geometric operation by its definition, and which pixels lie too near a border to call."""
    _, height, width = image.shape
    a, b, c, d, e, f = coefficients(name, strength, height, width)
    result = np.zeros_like(image)
    close = np.zeros((height, width), bool)
    for y in range(height):
        for x in range(width):
            across = a * (x + 0.5) + b * (y + 0.5) + c
            down = d * (x + 0.5) + e * (y + 0.5) + f
            close[y, x] = any(abs(v - round(v)) < 1e-4 for v in (across, down))
            if 0 <= across < width and 0 <= down < height:
                result[:, y, x] = image[:, math.floor(down), math.floor(across)]
    return result, close


def operated(image: Bytes, name: str, strength: float) -> Bytes:
    """An operation of the policies, by Pillow."""
    pil = picture(image)
    if name in GEOMETRIC:
        _, height, width = image.shape
        numbers = coefficients(name, strength, height, width)
        return array(pil.transform(pil.size, Image.Transform.AFFINE, numbers))
    enhancers = {
        "brightness": ImageEnhance.Brightness,
        "color": ImageEnhance.Color,
        "contrast": ImageEnhance.Contrast,
        "sharpness": ImageEnhance.Sharpness,
    }
    if name in enhancers:
        return array(enhancers[name](pil).enhance(strength))
    others = {
        "identity": lambda: pil,
        "posterize": lambda: ImageOps.posterize(pil, round(strength)),
        "solarize": lambda: ImageOps.solarize(pil, strength),
        "auto_contrast": lambda: ImageOps.autocontrast(pil),
        "equalize": lambda: ImageOps.equalize(pil),
    }
    return array(others[name]())
