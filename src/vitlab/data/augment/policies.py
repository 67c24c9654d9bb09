"""TrivialAugment (arXiv:2103.10158) and RandAugment (arXiv:1909.13719), a batch at a time.

Each image draws its operation and strength; images with the same operation are computed together.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from vitlab.data.augment import operations
from vitlab.data.augment.config import MAGNITUDES, AugmentConfig


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
    "shear_x": operations.shear_x,
    "shear_y": operations.shear_y,
    "translate_x": operations.translate_x,
    "translate_y": operations.translate_y,
    "rotate": operations.rotate,
    "brightness": operations.adjust_brightness,
    "color": operations.adjust_color,
    "contrast": operations.adjust_contrast,
    "sharpness": operations.adjust_sharpness,
    "posterize": operations.posterize,
    "solarize": operations.solarize,
    "auto_contrast": lambda images, _: operations.auto_contrast(images),
    "equalize": lambda images, _: operations.equalize(images),
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
    images: UInt8[Tensor, "B C H W"], config: AugmentConfig, generator: torch.Generator
) -> UInt8[Tensor, "B C H W"]:
    """Apply random operations, drawn separately for every image."""
    batch = len(images)
    space = SPACES[config.policy]
    for _ in range(config.policy_ops if config.policy == "randaugment" else 1):
        chosen = torch.randint(len(space), (batch,), generator=generator)
        sign = torch.randint(2, (batch,), generator=generator) * 2.0 - 1.0
        magnitude = torch.full((batch,), config.policy_magnitude)
        if config.policy == "trivial":
            magnitude = torch.randint(MAGNITUDES, (batch,), generator=generator)
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
