"""Configs of the CNN baselines; like `ViTConfig`, they name a model without importing torch."""

from dataclasses import dataclass
from typing import Literal, get_args

from vitlab.errors import ConfigError, UnknownName
from vitlab.models.config import Size, check_limits, pair

Family = Literal["cifar", "bit"]
SMALLEST_TUTORIAL_IMAGE = 16
"""Smallest image that the tutorial's convolutions and pools do not reduce to nothing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TutorialCNNConfig:
    """The small network of the PyTorch CIFAR-10 tutorial."""

    image_size: Size = 32
    channels: int = 3
    classes: int = 10
    """Outputs of the head; 0 leaves the head out and the model returns its representation."""

    def __post_init__(self) -> None:
        _check_numbers(self)
        if min(pair(self.image_size)) < SMALLEST_TUTORIAL_IMAGE:
            raise ConfigError(
                f"image_size {self.image_size} is not at least {SMALLEST_TUTORIAL_IMAGE}"
            )

    @property
    def blocks(self) -> int:
        """Number of layers with weights, without the head."""
        return 4


@dataclass(frozen=True, kw_only=True, slots=True)
class ResNetConfig:
    """A residual network: for 32x32 images, or BiT's."""

    family: Family
    """`cifar`: basic blocks, BatchNorm, no pooling before the last stage (arXiv:1512.03385).
    `bit`: pre-activation bottlenecks, GroupNorm, standardised weights (arXiv:1912.11370)."""
    layers: tuple[int, ...]
    """Blocks in each stage; each stage after the first halves the map and doubles the width."""
    width: int = 64
    """Channels of the first convolution and of the first stage's blocks."""
    image_size: Size = 224
    """Size the model is designed for; any other works, as the last map is averaged."""
    channels: int = 3
    classes: int = 1000
    """Outputs of the head; 0 leaves the head out and the model returns its representation."""

    def __post_init__(self) -> None:
        _check_numbers(self)
        if self.family not in get_args(Family):
            raise UnknownName("family", str(self.family), get_args(Family))
        if not self.layers or min(self.layers) < 1:
            raise ConfigError(
                f"layers {self.layers} needs one stage or more, each of 1 block or more"
            )
        check_limits(depth=self.blocks, width=self.width << min(len(self.layers), 64))
        multiple = 32 if self.family == "bit" else 1
        if self.width < 1 or self.width % multiple:
            raise ConfigError(f"width {self.width} is not a positive multiple of {multiple}")

    @property
    def blocks(self) -> int:
        """Number of residual blocks, each with its own tensors."""
        return sum(self.layers)


def _check_numbers(config: TutorialCNNConfig | ResNetConfig) -> None:
    if min(pair(config.image_size)) < 1:
        raise ConfigError(f"image_size {config.image_size} is not at least 1")
    if config.channels < 1:
        raise ConfigError(f"channels {config.channels} is not at least 1")
    if config.classes < 0:
        raise ConfigError(f"classes {config.classes} is negative")
    check_limits(
        image_size=max(pair(config.image_size)), channels=config.channels, classes=config.classes
    )
