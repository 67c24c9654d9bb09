"""What a method returns: maps of patches, and how rows over tokens become such maps."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from vitlab.nn.encoder import Grid


@dataclass(frozen=True, eq=False)
class Maps:
    """A map of patches for each image of a batch."""

    map: Float[Tensor, "B h w"]
    layers: tuple[Float[Tensor, "B *A _ _"], ...] = ()
    """Where it was asked for: a map for each block, or one for each of its heads."""
    elsewhere: Float[Tensor, " B"] | None = None
    """Share of a distribution that lies on tokens that are no patches."""
    fine: Float[Tensor, "B H W"] | None = None
    """The map for every pixel that the model reads, of methods that know it."""


def patches_of(rows: Float[Tensor, "*B N"], prefix: int, grid: Grid) -> Float[Tensor, "*B h w"]:
    """The part of rows over tokens that belongs to patches, where they lie."""
    return rows[..., prefix:].unflatten(-1, grid)


def unpooled(rows: Float[Tensor, "*B M"], prefix: int, grid: Grid) -> Float[Tensor, "*B N"]:
    """Rows over tokens whose patches are averages of 2x2, as rows over those: a quarter each."""
    finer = patches_of(rows, prefix, grid) / 4
    for axis in (-2, -1):
        finer = finer.repeat_interleave(2, dim=axis)
    return torch.cat([rows[..., :prefix], finer.flatten(-2)], dim=-1)


def share_elsewhere(rows: Float[Tensor, "B N"], prefix: int) -> Float[Tensor, " B"]:
    """The share of each row that lies before the patches."""
    return rows[:, :prefix].sum(dim=1) / rows.sum(dim=1)
