"""Random numbers that augment one batch, a row for each image, drawn before any image is read.

They depend on the settings, the generator and the number of images, never on pixels. So a process
that reads a part of a batch draws all of them, and takes the rows of its part.
"""

from dataclasses import dataclass, fields

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vitlab.data.augment.config import MAGNITUDES, AugmentConfig

SEEDS = 2**62


@dataclass(frozen=True, kw_only=True, slots=True)
class Draws:
    """Draws of a batch; None: not needed by the settings."""

    flips: Bool[Tensor, " B"] | None = None
    offsets: Int[Tensor, "B 2"] | None = None
    """Pixels that an image is shifted down and right."""
    operations: Int[Tensor, "B ops"] | None = None
    """Numbers of the operations of a policy, in the order in which they are applied."""
    signs: Float[Tensor, "B ops"] | None = None
    magnitudes: Int[Tensor, "B ops"] | None = None
    factors: Float[Tensor, "B 3"] | None = None
    """Of brightness, contrast and saturation."""
    cutout: Float[Tensor, "B 2"] | None = None
    """Centre of the square, as shares of the height and the width."""
    erased: Bool[Tensor, " B"] | None = None
    erasing: Int[Tensor, " B"] | None = None
    """Seeds of the erased rectangles."""
    partner: Int[Tensor, " B"] | None = None
    """Row of the image that each image is mixed with."""
    patched: Bool[Tensor, " B"] | None = None
    """True for CutMix, False for mixup."""
    mixup: Float[Tensor, " B"] | None = None
    """Share of the image itself in mixup."""
    cutmix: Float[Tensor, " B"] | None = None
    """Share of the image itself in CutMix."""
    boxes: Float[Tensor, "B 2"] | None = None
    """Centres of the boxes of CutMix, as shares of the height and the width."""

    def take(self, rows: Int[Tensor, " R"]) -> "Draws":
        """Draws of these rows; `partner` still counts rows of the whole batch."""
        drawn = {field.name: getattr(self, field.name) for field in fields(self)}
        return Draws(**{name: values[rows] for name, values in drawn.items() if values is not None})


def draw(config: AugmentConfig, count: int, generator: torch.Generator) -> Draws:
    """Draws of a batch of `count` images."""
    found: dict[str, Tensor] = {}
    if config.flip == "random":
        found["flips"] = torch.rand(count, generator=generator) < 0.5
    if config.shift:
        found["offsets"] = torch.randint(
            -config.shift, config.shift + 1, (count, 2), generator=generator
        )
    if config.policy != "none":
        found |= draw_operations(config, count, generator)
    if config.color_jitter:
        jitter = 2 * torch.rand(3, count, generator=generator) - 1
        found["factors"] = (1 + config.color_jitter * jitter).T
    if config.cutout:
        found["cutout"] = torch.rand(count, 2, generator=generator)
    if config.erase:
        found["erased"] = torch.rand(count, generator=generator) < config.erase
        found["erasing"] = draw_seeds(count, generator)
    if config.mixes:
        found |= _draw_mixing(config, count, generator)
    return Draws(**found)


def draw_operations(
    config: AugmentConfig, count: int, generator: torch.Generator
) -> dict[str, Tensor]:
    """Operations of the policy, their signs and their magnitudes."""
    drawn = []
    for _ in range(config.policy_ops if config.policy == "randaugment" else 1):
        chosen = torch.randint(OPERATION_COUNT, (count,), generator=generator)
        sign = torch.randint(2, (count,), generator=generator) * 2.0 - 1.0
        magnitude = torch.full((count,), config.policy_magnitude)
        if config.policy == "trivial":
            magnitude = torch.randint(MAGNITUDES, (count,), generator=generator)
        drawn.append((chosen, sign, magnitude))
    operations, signs, magnitudes = (torch.stack(each, 1) for each in zip(*drawn, strict=True))
    return {"operations": operations, "signs": signs, "magnitudes": magnitudes}


OPERATION_COUNT = 14
"""Number of operations of both policies."""


def _draw_mixing(
    config: AugmentConfig, count: int, generator: torch.Generator
) -> dict[str, Tensor]:
    found = {"partner": torch.randperm(count, generator=generator)}
    torch.rand(count, generator=generator)  # unused; without it a seed would give other batches
    found["patched"] = torch.full((count,), bool(config.cutmix))
    if config.mixup and config.cutmix:
        found["patched"] = torch.rand(count, generator=generator) < 0.5
    if config.mixup:
        found["mixup"] = beta(config.mixup, count, generator)
    if config.cutmix:
        found["cutmix"] = beta(config.cutmix, count, generator)
        found["boxes"] = torch.rand(count, 2, generator=generator)
    return found


def draw_seeds(count: int, generator: torch.Generator) -> Int[Tensor, " B"]:
    """Seeds for Python's `Random`, where each image's draws depend on its own size."""
    return torch.randint(SEEDS, (count,), generator=generator)


def beta(alpha: float, count: int, generator: torch.Generator) -> Float[Tensor, " B"]:
    """Draws from Beta(alpha, alpha); torch has none that takes a generator."""
    seed = int(torch.randint(2**62, (), generator=generator))
    draws = np.random.default_rng(seed).beta(alpha, alpha, count)
    return torch.from_numpy(draws.astype(np.float32))
