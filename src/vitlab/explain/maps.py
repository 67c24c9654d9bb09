"""Results of a method: maps of patches, and their computation from rows over tokens."""

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
    """On request: a map for each block, or one for each of its heads."""
    elsewhere: Float[Tensor, " B"] | None = None
    """Share of a distribution on tokens that are not patches."""
    fine: Float[Tensor, "B H W"] | None = None
    """Map for every pixel of the model input, from methods that provide it."""


def patches_of(rows: Float[Tensor, "*B N"], prefix: int, grid: Grid) -> Float[Tensor, "*B h w"]:
    """Part of rows over tokens that belongs to patches, arranged on the grid."""
    return rows[..., prefix:].unflatten(-1, grid)


def unpooled(rows: Float[Tensor, "*B M"], prefix: int, grid: Grid) -> Float[Tensor, "*B N"]:
    """Rows over tokens of 2x2-averaged patches, expanded to those patches: a quarter each."""
    finer = patches_of(rows, prefix, grid) / 4
    for axis in (-2, -1):
        finer = finer.repeat_interleave(2, dim=axis)
    return torch.cat([rows[..., :prefix], finer.flatten(-2)], dim=-1)


def share_elsewhere(rows: Float[Tensor, "B N"], prefix: int) -> Float[Tensor, " B"]:
    """Share of each row on the tokens before the patches."""
    return rows[:, :prefix].sum(dim=1) / rows.sum(dim=1)
