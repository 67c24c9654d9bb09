"""Whole batches of 8-bit images at another size."""

import torch
import torch.nn.functional as F
from jaxtyping import UInt8
from torch import Tensor

from vitlab.errors import DataError
from vitlab.preprocessing import Interpolation, cover

MODES = {"nearest": "nearest-exact", "bilinear": "bilinear", "bicubic": "bicubic"}


def resize(
    images: UInt8[Tensor, "B C H W"], size: tuple[int, int], interpolation: Interpolation
) -> UInt8[Tensor, "B C h w"]:
    """The centre of each image, as large as its proportions allow, at this size; antialiased."""
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
