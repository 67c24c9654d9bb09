"""Who looks: the tokens that a question is about, as a distribution over the tokens of a layer."""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from vitlab.errors import InputError
from vitlab.explain.maps import unpooled
from vitlab.explain.trace import Trace
from vitlab.models.config import ViTConfig
from vitlab.nn.encoder import Grid
from vitlab.nn.pool import AttentionPool

Token = tuple[int, int]
Each = Literal["layer", "head"]
"""What there shall be a map for."""


@dataclass(frozen=True)
class Query:
    """A patch by row and column, or, without one, whatever the head reads."""

    token: Token | None = None

    def check(self, grid: Grid) -> None:
        """Refuse a patch that the grid does not have."""
        if self.token is None:
            return
        row, column = self.token
        if not (0 <= row < grid[0] and 0 <= column < grid[1]):
            raise InputError(
                f"token {row},{column}; valid: rows 0 to {grid[0] - 1}, columns 0 to {grid[1] - 1}"
            )

    def row(self, found: Trace, layer: int) -> Float[Tensor, "B N"]:
        """How much each token behind a block is asked; sums to one."""
        x, grid = found.stages[layer].x, found.stages[layer].grid
        row = x.new_zeros(x.shape[:2])
        pool = found.model.config.pool
        if self.token is not None:
            row[:, found.prefix + _place(self.token, found.grid, grid)] = 1.0
        elif pool == "cls":
            row[:, 0] = 1.0
        elif pool == "map":
            row = behind(found, layer, probe_looks(found).mean(dim=1))
        else:
            row[:, 0 if pool == "mean_all" else found.prefix :] = 1.0
            row /= row.sum(dim=1, keepdim=True)
        return row

    def words(self, config: ViTConfig) -> str:
        """Who it is, in words that begin a question."""
        if self.token is not None:
            return "the patch in row {}, column {}".format(*self.token)
        if config.pool == "cls":
            return "the class token"
        if config.pool == "map":
            return "the probe of the attention pooling"
        if config.pool == "mean_all":
            return "the average token (this model averages all of its tokens)"
        has = "reads no class token" if config.class_token else "has no class token"
        return f"the average patch (this model averages its patches and {has})"


def behind(found: Trace, layer: int, row: Float[Tensor, "B M"]) -> Float[Tensor, "B N"]:
    """A row over the last block's tokens, over those of an earlier one, which may be more."""
    for stage in found.stages[:layer:-1]:
        row = unpooled(row, found.prefix, stage.grid) if stage.pools else row
    return row


def _place(token: Token, whole: Grid, grid: Grid) -> int:
    """The number of the patch in `grid` under which one of the finer grid `whole` lies."""
    row, column = (
        place * cells // fine for place, cells, fine in zip(token, grid, whole, strict=True)
    )
    return row * grid[1] + column


def probe_looks(found: Trace) -> Float[Tensor, "B A N"]:
    """Where the probe of an attention pooling looks."""
    pool = found.model.pool
    assert isinstance(pool, AttentionPool)
    with torch.no_grad():
        tokens = found.tokens()
        return pool.attention.weights(pool.probes(len(tokens)), tokens)[:, :, 0]
