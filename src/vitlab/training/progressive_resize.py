"""Progressive resizing: early steps use smaller images, and cost less."""

from itertools import pairwise

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from vitlab.errors import ConfigError
from vitlab.models.config import ViTConfig, pair
from vitlab.training.config import TrainConfig

FIXED = 0.15
"""Share of the time of an update that does not depend on the image size."""


def stages(config: TrainConfig) -> list[tuple[int | None, float]]:
    """Shorter side of the images (None: as they are) and share of the steps, stage by stage."""
    ends = (0.0, *config.small_until, 1.0)
    shares = [end - begin for begin, end in pairwise(ends)]
    return list(zip((*config.small_sizes, None), shares, strict=True))


def size_at(config: TrainConfig, step: int, steps: int) -> int | None:
    """The shorter side of the images at this step; None: as they are."""
    stages = zip(config.small_sizes, config.small_until, strict=True)
    return next((size for size, until in stages if step < until * steps), None)


def shrink(images: Float[Tensor, "B C H W"], size: int | None) -> Float[Tensor, "B C h w"]:
    """The images with a shorter side of `size` pixels, antialiased."""
    if size is None:
        return images
    return F.interpolate(images, scaled(images.shape[2:], size), mode="bilinear", antialias=True)


def scaled(shape: tuple[int, ...], size: int) -> tuple[int, int]:
    """Height and width of an image of this shape whose shorter side becomes `size`."""
    height, width = shape
    shorter = min(height, width)
    return round(height * size / shorter), round(width * size / shorter)


def share_of_time(config: TrainConfig, full: int, *, done: float = 1.0) -> float:
    """Estimated time of this share of the steps, relative to a run with full-size images."""
    time, begin = 0.0, 0.0
    for size, share in stages(config):
        pixels = 1.0 if size is None else (size / full) ** 2
        time += min(max(done - begin, 0.0), share) * (FIXED + (1 - FIXED) * pixels)
        begin += share
    return time


def check_small_sizes(model: nn.Module, config: TrainConfig) -> None:
    """Raise if the model cannot take these sizes, before anything is written."""
    if not config.small_sizes:
        return
    settings = getattr(model, "config", None)
    if not isinstance(settings, ViTConfig):
        raise ConfigError(f"small_sizes is for Vision Transformers, not for {config.model}")
    if not settings.dynamic_size:
        raise ConfigError("small_sizes needs a model that takes them: model.dynamic_size=true")
    full = pair(settings.image_size)
    for size in config.small_sizes:
        if size >= min(full):
            raise ConfigError(f"small_sizes {size} is not below the model's {min(full)} pixels")
        try:
            settings.grid_for(scaled(full, size))
        except ConfigError as error:
            raise ConfigError(f"small_sizes {size}: {error}") from None
