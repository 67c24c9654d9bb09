"""TrivialAugment (arXiv:2103.10158) and RandAugment (arXiv:1909.13719), a batch at a time.

Each image draws its operation and strength; images with the same operation are computed together.
Operations are those of Pillow for batches of 8-bit images, one strength per image: geometric ones
use the nearest pixel and fill with black; the others round as Pillow does.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Shaped, UInt8
from torch import Tensor

from vitlab.data.augment.config import MAGNITUDES, AugmentConfig
from vitlab.data.augment.draws import Draws

Images = UInt8[Tensor, "B C H W"]
Dull = UInt8[Tensor, "B #C #H #W"]
Strength = Shaped[Tensor, " B"]

LUMA = (19595, 38470, 7471)
"""ITU-R 601 in 16-bit fixed point: Pillow's conversion from RGB to grey."""


def affine(images: Images, matrices: Float[Tensor, "B 2 3"]) -> Images:
    """Affine transform: output pixel (x, y) shows the input pixel at matrix @ (x, y, 1)."""
    batch, channels, height, width = images.shape
    matrices = matrices.to(images.device)[:, :, :, None, None]  # [B, 2, 3, 1, 1]
    rows = torch.arange(height, device=images.device)[:, None] + 0.5
    columns = torch.arange(width, device=images.device) + 0.5
    x, y = (
        (m[:, 0] * columns + (m[:, 1] * rows + m[:, 2])).floor() for m in matrices.unbind(1)
    )  # [B, H, W]
    inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
    places = (y * width + x).long().masked_fill_(~inside, 0).view(batch, 1, -1)
    picked = images.flatten(2).gather(2, places.expand(-1, channels, -1)).view_as(images)
    return picked.mul_(inside[:, None])


def shear_x(images: Images, slope: Strength) -> Images:
    """Shift rows to the left by `slope` per row, the first one least."""
    return affine(images, _matrices(len(images), {(0, 1): slope}))


def shear_y(images: Images, slope: Strength) -> Images:
    """Shift columns up by `slope` per column."""
    return affine(images, _matrices(len(images), {(1, 0): slope}))


def translate_x(images: Images, pixels: Strength) -> Images:
    """Shift images to the left by whole pixels."""
    return affine(images, _matrices(len(images), {(0, 2): pixels.trunc()}))


def translate_y(images: Images, pixels: Strength) -> Images:
    """Shift images up by whole pixels."""
    return affine(images, _matrices(len(images), {(1, 2): pixels.trunc()}))


def rotate(images: Images, degrees: Strength) -> Images:
    """Rotate counter-clockwise around the centre."""
    sine, cosine = (degrees * (math.pi / 180)).sin(), (degrees * (math.pi / 180)).cos()
    y, x = images.shape[-2] / 2, images.shape[-1] / 2
    entries = {
        (0, 0): cosine,
        (0, 1): -sine,
        (0, 2): x - cosine * x + sine * y,
        (1, 0): sine,
        (1, 1): cosine,
        (1, 2): y - sine * x - cosine * y,
    }
    return affine(images, _matrices(len(images), entries))


def _matrices(batch: int, entries: dict[tuple[int, int], Tensor]) -> Float[Tensor, "B 2 3"]:
    """Identity matrices except for the given entries."""
    matrices = torch.eye(2, 3).repeat(batch, 1, 1)
    for (row, column), values in entries.items():
        matrices[:, row, column] = values.to(matrices)
    return matrices


def adjust_brightness(images: Images, factor: Strength) -> Images:
    """Scale the distance from black."""
    return blend(torch.zeros_like(images[:, :1]), images, factor)


def adjust_color(images: Images, factor: Strength) -> Images:
    """Scale the distance from the grey image."""
    return blend(grey(images), images, factor)


def adjust_contrast(images: Images, factor: Strength) -> Images:
    """Scale the distance from the grey image's mean."""
    total = grey(images).long().sum(dim=(-2, -1), keepdim=True)
    pixels = images.shape[-2] * images.shape[-1]
    return blend(((2 * total + pixels) // (2 * pixels)).to(torch.uint8), images, factor)


def adjust_sharpness(images: Images, factor: Strength) -> Images:
    """Scale the distance from the smoothed image; the outermost pixels stay unchanged."""
    if min(images.shape[-2:]) < 3:
        return images
    pixels = images.float()
    sums = F.avg_pool2d(pixels, 3, stride=1, divisor_override=1)
    smooth = images.clone()
    # A kernel of ones with a five in the middle, divided by its sum and rounded.
    smooth[..., 1:-1, 1:-1] = ((sums + 4 * pixels[..., 1:-1, 1:-1]) / 13 + 0.5).to(torch.uint8)
    return blend(smooth, images, factor)


def blend(dull: Dull, images: Images, factor: Strength) -> Images:
    """Interpolate from the dull image (factor 0) to the image (factor 1) and beyond."""
    start = dull.float()
    factor = factor.to(start)[:, None, None, None]
    return (images - start).mul_(factor).add_(start).clamp_(0, 255).to(torch.uint8)


def grey(images: Images) -> UInt8[Tensor, "B 1 H W"]:
    """Luma of RGB; the rounded mean of any other number of channels."""
    channels = images.shape[1]
    if channels != 3:
        total = images.long().sum(dim=1, keepdim=True)
        return ((2 * total + channels) // (2 * channels)).to(torch.uint8)
    red, green, blue = images.int().split(1, dim=1)
    luma = red * LUMA[0] + green * LUMA[1] + blue * LUMA[2] + 2**15
    return (luma >> 16).to(torch.uint8)


def posterize(images: Images, bits: Strength) -> Images:
    """Keep only the highest bits."""
    mask = 256 - 2 ** (8 - bits.round().long())
    return images & mask.to(images)[:, None, None, None]


def solarize(images: Images, threshold: Strength) -> Images:
    """Invert values from the threshold on."""
    limit = threshold.to(images.device)[:, None, None, None]
    return torch.where(images < limit, images, 255 - images)


def auto_contrast(images: Images) -> Images:
    """Stretch each channel to the range from 0 to 255."""
    low = images.amin(dim=(-2, -1), keepdim=True).int()
    span = images.amax(dim=(-2, -1), keepdim=True).int() - low
    stretched = (images.int() - low) * 255 // span.clamp(min=1)
    return torch.where(span > 0, stretched.to(torch.uint8), images)


def equalize(images: Images) -> Images:
    """Flatten the histogram of each channel, as far as a table of 256 values allows."""
    values = images.flatten(2).flatten(0, 1).long()  # [BC, HW]
    counts = torch.zeros(len(values), 256, dtype=torch.long, device=images.device)
    counts.scatter_add_(1, values, torch.ones_like(values))
    largest = counts.gather(1, values.amax(dim=1, keepdim=True))  # count of the highest value
    step = (values.shape[1] - largest) // 255
    below = counts.cumsum(dim=1) - counts
    table = ((below + step // 2) // step.clamp(min=1)).clamp_(max=255)
    return torch.where(step > 0, table.gather(1, values), values).to(torch.uint8).view_as(images)


@dataclass(frozen=True, kw_only=True, slots=True)
class Strengths:
    """Strength of an operation at magnitude 0 and at the largest one."""

    least: float = 0.0
    most: float = 0.0
    signed: bool = False
    """True if the difference from `least` gets a random sign."""
    of_width: bool = False
    """True if `most` is a share of the image's width instead of a number of pixels."""

    def at(
        self, share: Float[Tensor, " B"], sign: Float[Tensor, " B"], width: int
    ) -> Float[Tensor, " B"]:
        """Strengths at these shares of the largest magnitude."""
        change = share * ((self.most * width if self.of_width else self.most) - self.least)
        return self.least + (change * sign if self.signed else change)


Operation = Callable[[Tensor, Tensor], Tensor]
OPERATIONS: Mapping[str, Operation] = {
    "identity": lambda images, _: images,
    "shear_x": shear_x,
    "shear_y": shear_y,
    "translate_x": translate_x,
    "translate_y": translate_y,
    "rotate": rotate,
    "brightness": adjust_brightness,
    "color": adjust_color,
    "contrast": adjust_contrast,
    "sharpness": adjust_sharpness,
    "posterize": posterize,
    "solarize": solarize,
    "auto_contrast": lambda images, _: auto_contrast(images),
    "equalize": lambda images, _: equalize(images),
}


def _space(
    *, shear: float, translate: Strengths, rotate: float, enhance: float, bits: float
) -> dict[str, Strengths]:
    """Strengths of all operations, with the values that both policies share."""
    enhanced = Strengths(least=1.0, most=1.0 + enhance, signed=True)
    return {
        "identity": Strengths(),
        "shear_x": Strengths(most=shear, signed=True),
        "shear_y": Strengths(most=shear, signed=True),
        "translate_x": translate,
        "translate_y": translate,
        "rotate": Strengths(most=rotate, signed=True),
        "brightness": enhanced,
        "color": enhanced,
        "contrast": enhanced,
        "sharpness": enhanced,
        "posterize": Strengths(least=8, most=bits),
        "solarize": Strengths(least=255, most=0),
        "auto_contrast": Strengths(),
        "equalize": Strengths(),
    }


SPACES: Mapping[str, Mapping[str, Strengths]] = {
    "trivial": _space(
        shear=0.99,
        translate=Strengths(most=32, signed=True),
        rotate=135,
        enhance=0.99,
        bits=2,
    ),
    "randaugment": _space(
        shear=0.3,
        translate=Strengths(most=150 / 331, signed=True, of_width=True),
        rotate=30,
        enhance=0.9,
        bits=4,
    ),
}


def apply_policy(
    images: UInt8[Tensor, "B C H W"], config: AugmentConfig, draws: Draws
) -> UInt8[Tensor, "B C H W"]:
    """Apply the operations drawn for each image, one after the other."""
    assert draws.operations is not None
    assert draws.signs is not None
    assert draws.magnitudes is not None
    space = SPACES[config.policy]
    for chosen, sign, magnitude in zip(
        draws.operations.T, draws.signs.T, draws.magnitudes.T, strict=True
    ):
        images = _apply(images, space, chosen, magnitude / (MAGNITUDES - 1), sign)
    return images


def _apply(
    images: Tensor, space: Mapping[str, Strengths], chosen: Tensor, share: Tensor, sign: Tensor
) -> Tensor:
    order = chosen.argsort(stable=True)
    groups = order.split(chosen.bincount(minlength=len(space)).tolist())
    results = []
    for rows, (name, strengths) in zip(groups, space.items(), strict=True):
        if len(rows):
            strength = strengths.at(share[rows], sign[rows], images.shape[-1])
            same = images.index_select(0, rows.to(images.device))
            results.append(OPERATIONS[name](same, strength))
    return torch.cat(results).index_select(0, order.argsort().to(images.device))
