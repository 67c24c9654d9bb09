"""Shift, crop and erase whole batches, with separate parameters for each image.

Parameters come from `draws.py`: on the CPU for every device, so the same seed gives the same batch
on all.
"""

from random import Random

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Shaped, UInt8
from torch import Tensor

from vitlab.data.augment.config import AugmentConfig
from vitlab.data.augment.draws import Draws
from vitlab.data.augment.policies import (
    adjust_brightness,
    adjust_color,
    adjust_contrast,
    apply_policy,
)
from vitlab.errors import DataError
from vitlab.images.decode import Box, crop_box, random_box
from vitlab.images.preprocessing import Interpolation, cover

ERASED_AREA = (0.02, 1 / 3)
ERASED_RATIO = (0.3, 3.3)
"""Aspect ratios of random erasing, as its authors chose them."""


def augment_pixels(
    images: UInt8[Tensor, "B C H W"],
    config: AugmentConfig,
    draws: Draws,
    *,
    mirrored: Bool[Tensor, " B"] | None = None,
) -> UInt8[Tensor, "B C H W"]:
    """Augment 8-bit pixels, except for the random crop, which may happen while decoding."""
    if mirrored is not None:
        images = mirror(images, mirrored)
    if draws.offsets is not None:
        images = shift(images, draws.offsets)
    if draws.operations is not None:
        images = apply_policy(images, config, draws)
    if draws.factors is not None:
        for adjust, factor in zip(
            (adjust_brightness, adjust_contrast, adjust_color), draws.factors.T, strict=True
        ):
            images = adjust(images, factor.to(images.device))
    return images


def augment_normalised(
    images: Float[Tensor, "B C H W"], config: AugmentConfig, draws: Draws
) -> Float[Tensor, "B C H W"]:
    """Augment normalised images, where zero is the mean colour."""
    if draws.cutout is not None:
        images = blank(images, cutout_boxes(images, config.cutout, draws.cutout))
    if draws.erased is not None and draws.erasing is not None:
        images = blank(images, erase_boxes(images, draws.erased, draws.erasing))
    return images


def which_to_mirror(
    config: AugmentConfig,
    draws: Draws,
    index: Int[Tensor, " B"],
    epoch: Int[Tensor, " B"],
    *,
    seed: int,
) -> Bool[Tensor, " B"] | None:
    """Half of the images at random, or the half whose turn it is (Jordan, arXiv:2404.00498)."""
    if config.flip == "alternate":
        return (coin(index, seed) + epoch) % 2 == 1
    return draws.flips


def coin(index: Int[Tensor, " B"], seed: int) -> Int[Tensor, " B"]:
    """0 or 1 for every image, always the same: one bit of a multiplicative hash."""
    mixed = (index + 1) * 0x9E3779B1 + seed % 2**31 * 0x85EBCA77
    mixed = (mixed ^ (mixed >> 15)) * 0x2C1B3C6D % 2**32
    return (mixed ^ (mixed >> 13)) >> 7 & 1


def mirror(
    images: Shaped[Tensor, "B C H W"], which: Bool[Tensor, " B"]
) -> Shaped[Tensor, "B C H W"]:
    """Flip images horizontally where `which` is True."""
    if not images.is_cpu:
        return torch.where(which.to(images.device)[:, None, None, None], images.flip(-1), images)
    # Image by image takes a third of the time on a CPU, and its memory stays in the cache.
    result = images.clone()
    for row in which.nonzero()[:, 0].tolist():
        result[row] = images[row].flip(-1)
    return result


def shift(
    images: Shaped[Tensor, "B C H W"], offsets: Int[Tensor, "B 2"]
) -> Shaped[Tensor, "B C H W"]:
    """Each image shifted down and right by its offsets; a crop of the image with mirrored edges."""
    height, width = images.shape[-2:]
    offsets = offsets.to(images.device)
    rows = torch.arange(height, device=images.device) - offsets[:, :1]  # [B, H]
    columns = torch.arange(width, device=images.device) - offsets[:, 1:]  # [B, W]
    from_row, from_column = _reflect(rows, height), _reflect(columns, width)
    return pick(images, from_row[:, :, None] * width + from_column[:, None, :])


def pick(
    images: Shaped[Tensor, "B C H W"], pixels: Int[Tensor, "B h w"]
) -> Shaped[Tensor, "B C h w"]:
    """Images with pixels taken from these places in row-major order, in every channel."""
    batch, channels, _, _ = images.shape
    places = pixels.reshape(batch, 1, -1).expand(-1, channels, -1)
    return images.flatten(2).gather(2, places).view(batch, channels, *pixels.shape[1:])


def _reflect(places: Tensor, size: int) -> Tensor:
    """Places mirrored at the centres of the first and the last pixel, as often as needed."""
    period = max(2 * (size - 1), 1)
    places = places % period
    return torch.minimum(places, period - places) if size > 1 else torch.zeros_like(places)


def random_crops(
    size: tuple[int, int], config: AugmentConfig, seeds: Int[Tensor, " B"]
) -> Int[Tensor, "B 4"]:
    """One random crop of an image of `size` for every seed."""
    assert config.random_resized_crop is not None
    area, ratio = config.random_resized_crop, config.crop_ratio
    return torch.tensor(
        [crop_box(size, area=area, ratio=ratio, seed=seed) for seed in seeds.tolist()]
    )


def resized_crop(
    images: UInt8[Tensor, "B C H W"], boxes: Int[Tensor, "B 4"]
) -> UInt8[Tensor, "B C H W"]:
    """Each image's box resized to the whole image, bilinear: never smaller, so no aliasing."""
    height, width = images.shape[-2:]
    boxes = boxes.to(images.device)
    rows = _stretch(boxes[:, 0], boxes[:, 2], height)  # [B, H, H]
    columns = _stretch(boxes[:, 1], boxes[:, 3], width)  # [B, W, W]
    stretched = rows[:, None] @ images.float() @ columns[:, None].mT
    return (stretched + 0.5).clamp_(0, 255).to(torch.uint8)


def _stretch(low: Tensor, high: Tensor, size: int) -> Float[Tensor, "B to of"]:
    """Bilinear weights; places beyond the edge of the image take the edge."""
    places = torch.arange(size, device=low.device) + 0.5
    scale = ((high - low) / size)[:, None]
    centres = (low[:, None] + places * scale).clamp(0.5, size - 0.5)
    return (1 - (centres[:, :, None] - places).abs()).clamp_(min=0)


def cutout_boxes(
    images: Shaped[Tensor, "B C H W"], side: int, centres: Float[Tensor, "B 2"]
) -> Int[Tensor, "B 4"]:
    """Squares around these places; a part of a square may lie outside."""
    corners = (centres * torch.tensor(images.shape[-2:])).long() - side // 2
    return torch.cat([corners, corners + side], dim=1)


def erase_boxes(
    images: Shaped[Tensor, "B C H W"], erased: Bool[Tensor, " B"], seeds: Int[Tensor, " B"]
) -> Int[Tensor, "B 4"]:
    """Random rectangles for the erased images and empty ones for the rest."""
    size = (images.shape[-2], images.shape[-1])
    nothing = Box(0, 0, 0, 0)
    boxes = [
        random_box(size, area=ERASED_AREA, ratio=ERASED_RATIO, draw=Random(seed)) or nothing
        if chosen
        else nothing
        for chosen, seed in zip(erased.tolist(), seeds.tolist(), strict=True)
    ]
    return torch.tensor(boxes)


def blank(
    images: Shaped[Tensor, "B C H W"], boxes: Int[Tensor, "B 4"]
) -> Shaped[Tensor, "B C H W"]:
    """Zero inside each image's box."""
    return images.masked_fill(inside(boxes, images)[:, None], 0)


def inside(boxes: Int[Tensor, "B 4"], images: Shaped[Tensor, "B C H W"]) -> Bool[Tensor, "B H W"]:
    """True for the pixels inside of each image's box."""
    top, left, bottom, right = boxes.to(images.device)[:, :, None].unbind(1)  # [B, 1] each
    rows = torch.arange(images.shape[-2], device=images.device)
    columns = torch.arange(images.shape[-1], device=images.device)
    in_rows, in_columns = (rows >= top) & (rows < bottom), (columns >= left) & (columns < right)
    return in_rows[:, :, None] & in_columns[:, None, :]


# Resizing of whole batches of 8-bit images.

MODES = {"nearest": "nearest-exact", "bilinear": "bilinear", "bicubic": "bicubic"}


def resize(
    images: UInt8[Tensor, "B C H W"], size: tuple[int, int], interpolation: Interpolation
) -> UInt8[Tensor, "B C h w"]:
    """Largest central crop of the target's proportions, resized with antialiasing."""
    if interpolation not in MODES:
        raise DataError(
            f"interpolation {interpolation!r} of images in memory; valid: {', '.join(MODES)}"
        )
    covering = cover((images.shape[2], images.shape[3]), size)
    scaled = images
    if covering != (images.shape[2], images.shape[3]):
        scaled = _scale(images, covering, MODES[interpolation])
    top, left = (round((have - want) / 2) for have, want in zip(covering, size, strict=True))
    return scaled[:, :, top : top + size[0], left : left + size[1]]


def _scale(images: Tensor, size: tuple[int, int], mode: str) -> Tensor:
    if mode == "nearest-exact":
        return F.interpolate(images, size, mode=mode)
    # In float: only some devices compute with 8 bits, and a batch must not depend on the device.
    scaled = F.interpolate(images.float(), size, mode=mode, antialias=True)
    return scaled.round_().clamp_(0, 255).to(torch.uint8)
