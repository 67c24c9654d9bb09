"""Prepare training batches from 8-bit pixels: augment, normalise, mix."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from vitlab.data.augment.config import AugmentConfig
from vitlab.data.augment.geometry import augment_normalised, augment_pixels, which_to_mirror
from vitlab.data.augment.mix import mix
from vitlab.data.images import Labels
from vitlab.data.random import generator
from vitlab.errors import DataError

CACHED = 2**17
"""Numbers that stay in a core's cache from one operation to the next."""


class Batch(NamedTuple):
    """Images and targets of one step, on the training device."""

    images: Float[Tensor, "B C H W"]
    targets: Float[Tensor, "B classes"] | Int[Tensor, " B"]
    """Class indices; for mixed images or several labels, a share per class; or values."""
    index: Int[Tensor, " B"]  # type: ignore[assignment]  # instead of the tuple's method
    """Indices of the images in the set; on the CPU."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchMaker:
    """All randomness after decoding; the same seed and step give the same batch anywhere."""

    config: AugmentConfig
    seed: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    classes: int

    def make(
        self,
        images: UInt8[Tensor, "B C H W"],
        labels: Labels,
        *,
        index: Int[Tensor, " B"],
        epoch: Int[Tensor, " B"],
        step: int,
    ) -> Batch:
        """Batch of a step from its pixels, on their device."""
        draw = generator(self.seed, "augment", step)
        mirrored = which_to_mirror(self.config, index, epoch, seed=self.seed, generator=draw)
        images = augment_pixels(images, self.config, mirrored=mirrored, generator=draw)
        pixels = normalise(images, self.mean, self.std)
        pixels = augment_normalised(pixels, self.config, draw)
        labels = labels.to(images.device)
        if labels.ndim == 2:
            labels = labels.to(pixels)
        if not self.config.mixes:
            return Batch(pixels, labels, index)
        targets = F.one_hot(labels, self.classes).to(pixels) if labels.ndim == 1 else labels
        return Batch(*mix(pixels, targets, self.config, draw), index)


def normalise(
    images: UInt8[Tensor, "B C H W"], mean: tuple[float, ...], std: tuple[float, ...]
) -> Float[Tensor, "B C H W"]:
    """Values of 0 to 1 minus the mean, over the deviation: as `Preprocessing`, bit for bit."""
    if images.shape[1] != len(mean):
        raise DataError(f"images have {images.shape[1]} channels, mean {mean} has {len(mean)}")
    centre, scale = (
        torch.tensor(values, device=images.device)[:, None, None] for values in (mean, std)
    )
    if not images.is_cpu:
        return images.float().div_(255).sub_(centre).div_(scale)
    # NumPy requests huge pages: large batches cost half, if the allocator returns its memory.
    result = torch.from_numpy(np.empty(images.shape, np.float32))
    piece = max(1, CACHED // images[0].numel())
    for part, pixels in zip(result.split(piece), images.split(piece), strict=True):
        part.copy_(pixels).div_(255).sub_(centre).div_(scale)
    return result
