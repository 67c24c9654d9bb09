"""Prepare training batches from 8-bit pixels: augment, normalise, mix."""

from dataclasses import dataclass
from typing import NamedTuple

import torch.nn.functional as F
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from vitlab.data.augment.config import AugmentConfig
from vitlab.data.augment.geometry import augment_normalised, augment_pixels, which_to_mirror
from vitlab.data.augment.mix import mix
from vitlab.data.images import Labels, normalise
from vitlab.data.random import generator


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
