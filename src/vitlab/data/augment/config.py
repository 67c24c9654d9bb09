"""`AugmentConfig`: all random transformations of images and targets before the model."""

import math
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, get_args, get_origin

from vitlab.errors import ConfigError, UnknownName

MAGNITUDES = 31
"""Strengths of a policy's operations: 0 is the weakest, 30 the strongest."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AugmentConfig:
    """Augmentation in the order of its fields; pixels are those of the model's input."""

    repeats: int = 1
    """Number of copies of each image in a batch, each augmented separately."""
    random_resized_crop: tuple[float, float] | None = None
    """Least and largest share of the image's area that a random crop keeps; None: all of it."""
    crop_ratio: tuple[float, float] = (3 / 4, 4 / 3)
    """Least and largest width / height of that crop."""
    flip: Literal["none", "random", "alternate"] = "none"
    """Mirror half of the images; `alternate` mirrors an image in every other epoch."""
    shift: int = 0
    """Largest number of pixels that an image moves along each axis, mirrored at its edge."""
    policy: Literal["none", "trivial", "randaugment"] = "none"
    """TrivialAugment (arXiv:2103.10158, wide) or RandAugment (arXiv:1909.13719)."""
    policy_ops: int = 2
    """Operations that `randaugment` applies one after the other; `trivial` applies one."""
    policy_magnitude: int = 9
    """Strength of `randaugment`, 0 to 30; `trivial` draws one for every image."""
    color_jitter: float = 0.0
    """Brightness, contrast and saturation change by factors of 1 - this to 1 + this."""
    cutout: int = 0
    """Side of a square of the mean colour; its centre is any pixel (arXiv:1708.04552)."""
    erase: float = 0.0
    """Probability of a random rectangle of the mean colour (arXiv:1708.04896)."""
    mixup: float = 0.0
    """Alpha of mixup (arXiv:1710.09412); 0: off. With cutmix too, each image gets one of them."""
    cutmix: float = 0.0
    """Alpha of CutMix (arXiv:1905.04899); 0: off."""
    REMOVED: ClassVar[dict[str, Any]] = {"shift_padding": "reflect", "mix_probability": 1.0}
    """Options of earlier versions, with their defaults."""

    def __post_init__(self) -> None:
        _check_names(self)
        _check_numbers(self)
        _check_crop(self)

    @property
    def mixes(self) -> bool:
        """True if targets become distributions over the classes."""
        return self.mixup > 0 or self.cutmix > 0


def _check_names(config: AugmentConfig) -> None:
    for field in fields(config):
        choices = get_args(field.type)
        if get_origin(field.type) is Literal and getattr(config, field.name) not in choices:
            raise UnknownName(field.name, str(getattr(config, field.name)), choices)


def _check_numbers(config: AugmentConfig) -> None:
    for name in ("repeats", "policy_ops"):
        if getattr(config, name) < 1:
            raise ConfigError(f"{name} {getattr(config, name)} is not at least 1")
    for name in ("shift", "cutout", "mixup", "cutmix"):
        if not 0 <= getattr(config, name) < math.inf:
            raise ConfigError(f"{name} {getattr(config, name)} is not a finite number from 0 on")
    for name in ("erase", "color_jitter"):
        if not 0 <= getattr(config, name) <= 1:
            raise ConfigError(f"{name} {getattr(config, name)} is not in [0, 1]")
    if not 0 <= config.policy_magnitude < MAGNITUDES:
        found = config.policy_magnitude
        raise ConfigError(f"policy_magnitude {found} is not in 0 to {MAGNITUDES - 1}")


def _check_crop(config: AugmentConfig) -> None:
    area, ratio = config.random_resized_crop, config.crop_ratio
    if area is not None and not 0 < area[0] <= area[1] <= 1:
        raise ConfigError(
            f"random_resized_crop {area} is not a least and a largest share in (0, 1]"
        )
    if not 0 < ratio[0] <= ratio[1] < math.inf:
        raise ConfigError(f"crop_ratio {ratio} is not a least and a largest width / height")
