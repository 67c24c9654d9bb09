"""Mixing pairs of images and their targets: mixup (arXiv:1710.09412), CutMix (arXiv:1905.04899).

Every image has its own partner, share and kind of mixing.
"""

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vitlab.data.augment.config import AugmentConfig
from vitlab.data.augment.geometry import inside


def mix(
    images: Float[Tensor, "B C H W"],
    targets: Float[Tensor, "B classes"],
    config: AugmentConfig,
    generator: torch.Generator,
) -> tuple[Float[Tensor, "B C H W"], Float[Tensor, "B classes"]]:
    """Mix images and targets by `config`: some blended, some patched, some unchanged."""
    batch = len(images)
    partner = torch.randperm(batch, generator=generator)
    mixed = torch.rand(batch, generator=generator) < config.mix_probability
    patched = mixed & _with_cutmix(config, batch, generator)
    if config.mixup:
        share = beta(config.mixup, batch, generator).where(mixed & ~patched, 1.0)
        blended = mixup(images, targets, partner=partner, share=share)
    else:
        blended = images, targets
    if not config.cutmix:
        return blended
    boxes = cutmix_boxes(images, beta(config.cutmix, batch, generator), generator)
    cut = cutmix(images, targets, partner=partner, boxes=boxes)
    choice = patched.to(images.device)
    return (
        torch.where(choice[:, None, None, None], cut[0], blended[0]),
        torch.where(choice[:, None], cut[1], blended[1]),
    )


def mixup(
    images: Float[Tensor, "B C H W"],
    targets: Float[Tensor, "B classes"],
    *,
    partner: Int[Tensor, " B"],
    share: Float[Tensor, " B"],
) -> tuple[Float[Tensor, "B C H W"], Float[Tensor, "B classes"]]:
    """`share` of each image and target, the rest from its partner."""
    partner, share = partner.to(images.device), share.to(images)
    return (
        torch.lerp(images.index_select(0, partner), images, share[:, None, None, None]),
        torch.lerp(targets[partner], targets, share[:, None]),
    )


def cutmix(
    images: Float[Tensor, "B C H W"],
    targets: Float[Tensor, "B classes"],
    *,
    partner: Int[Tensor, " B"],
    boxes: Int[Tensor, "B 4"],
) -> tuple[Float[Tensor, "B C H W"], Float[Tensor, "B classes"]]:
    """Each image with a box from its partner; targets follow the area of the box."""
    partner = partner.to(images.device)
    box = inside(boxes, images)
    share = 1 - box.to(targets).mean(dim=(1, 2))
    return (
        torch.where(box[:, None], images.index_select(0, partner), images),
        torch.lerp(targets[partner], targets, share[:, None]),
    )


def cutmix_boxes(
    images: Float[Tensor, "B C H W"], share: Float[Tensor, " B"], generator: torch.Generator
) -> Int[Tensor, "B 4"]:
    """Boxes of the image's proportions around random centres, cut off at the image's edge."""
    sizes = torch.tensor(images.shape[-2:])
    sides = (sizes * (1 - share).sqrt()[:, None]).long()  # [B, 2]
    corners = (torch.rand(len(images), 2, generator=generator) * sizes).long() - sides // 2
    return torch.cat([corners, corners + sides], dim=1)


def beta(alpha: float, count: int, generator: torch.Generator) -> Float[Tensor, " B"]:
    """Draws from Beta(alpha, alpha); torch has none that takes a generator."""
    seed = int(torch.randint(2**62, (), generator=generator))
    draws = np.random.default_rng(seed).beta(alpha, alpha, count)
    return torch.from_numpy(draws.astype(np.float32))


def _with_cutmix(
    config: AugmentConfig, batch: int, generator: torch.Generator
) -> Bool[Tensor, " B"]:
    if config.mixup and config.cutmix:
        return torch.rand(batch, generator=generator) < 0.5
    return torch.full((batch,), bool(config.cutmix))
