"""Faithfulness of maps: deletion and insertion of patches (arXiv:1806.07421), highest first.

A faithful map removes the probability of the class with few patches, and restores it with few.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from vitlab.nn.encoder import Grid

Removed = Literal["mean", "blur"]
REMOVED: tuple[Removed, ...] = get_args(Removed)
BLUR = 1 / 16
"""Deviation of the blur, as a part of the image's shorter side."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Curves:
    """Probability of the class of each image during deletion and insertion; [B, steps + 1]."""

    shares: NDArray[np.float64]
    """Share of the patches that are deleted, or inserted, at each step."""
    deletion: NDArray[np.float64]
    insertion: NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Perturbation:
    """Method of removing patches, and the number of steps."""

    steps: int
    removed: Removed = "mean"
    batch_size: int = 32

    def curves(
        self,
        believe: Callable[[Float[Tensor, "B C H W"]], Float[Tensor, "B classes"]],
        images: Float[Tensor, "B C H W"],
        target: Int[Tensor, " B"],
        orders: Mapping[str, Int[Tensor, "B P"]],
        grid: Grid,
    ) -> dict[str, Curves]:
        """Curves of several orders of the same images' patches; the first is removed first.

        `believe` returns probabilities for images.
        """
        patches = grid[0] * grid[1]
        counts = [round(step * patches / self.steps) for step in range(self.steps + 1)]
        bare = without(images, self.removed)
        ends = [self._believed(believe, ends, target) for ends in (images, bare)]
        found = {}
        for name, order in orders.items():
            ranks = order.argsort(dim=1)  # [B, P]: step at which each patch is removed
            kept, gone = [ends[0]], [ends[1]]
            for count in counts[1:-1]:
                mask = in_pixels(ranks < count, grid, images)
                kept.append(self._believed(believe, torch.where(mask, bare, images), target))
                gone.append(self._believed(believe, torch.where(mask, images, bare), target))
            found[name] = Curves(
                shares=np.array(counts) / patches,
                deletion=np.stack([*kept, ends[1]], axis=1),
                insertion=np.stack([*gone, ends[0]], axis=1),
            )
        return found

    def _believed(
        self,
        believe: Callable[[Tensor], Tensor],
        images: Float[Tensor, "B C H W"],
        target: Int[Tensor, " B"],
    ) -> NDArray[np.float64]:
        parts = [believe(part) for part in images.split(self.batch_size)]
        chosen = torch.cat(parts).gather(1, target[:, None])[:, 0]
        return chosen.cpu().double().numpy()


def area(shares: NDArray[np.float64], curves: NDArray[np.float64]) -> NDArray[np.float64]:
    """Area under each curve, by the trapezoidal rule."""
    return ((curves[:, 1:] + curves[:, :-1]) / 2) @ np.diff(shares)


def order_of(maps: Float[Tensor, "B h w"], generator: torch.Generator) -> Int[Tensor, "B P"]:
    """Patches by their values, the highest first; ties in random order."""
    values = maps.flatten(1).cpu()
    mixed = torch.rand(values.shape, generator=generator).argsort(dim=1)
    return mixed.gather(1, values.gather(1, mixed).argsort(dim=1, descending=True, stable=True))


def without(images: Float[Tensor, "B C H W"], removed: Removed) -> Float[Tensor, "B C H W"]:
    """Images reduced to their mean colour, or to a strong blur."""
    if removed == "mean":
        return images.mean(dim=(2, 3), keepdim=True).expand_as(images)
    deviation = BLUR * min(images.shape[2:])
    for axis in (2, 3):
        images = _blurred(images, axis, deviation)
    return images


def in_pixels(
    cells: Bool[Tensor, "B P"], grid: Grid, images: Float[Tensor, "B C H W"]
) -> Bool[Tensor, "B 1 H W"]:
    """Values of patches, expanded to their pixels."""
    rows, columns = (
        (torch.arange(side) * cells // side).to(images.device)
        for side, cells in zip(images.shape[2:], grid, strict=True)
    )
    return cells.to(images.device).unflatten(1, grid)[:, rows][:, :, columns][:, None]


def _blurred(
    images: Float[Tensor, "B C H W"], axis: int, deviation: float
) -> Float[Tensor, "B C H W"]:
    """Blur along one axis, with the border repeated."""
    reach = int(3 * deviation)
    offsets = torch.arange(-reach, reach + 1, device=images.device, dtype=images.dtype)
    weights = torch.exp(-((offsets / deviation) ** 2) / 2)
    weights = weights / weights.sum()
    moved = images.movedim(axis, -1)
    padded = F.pad(moved.flatten(0, 2)[:, None], (reach, reach), mode="replicate")
    return (
        F.conv1d(padded, weights[None, None])[:, 0].unflatten(0, moved.shape[:3]).movedim(-1, axis)
    )
