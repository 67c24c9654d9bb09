"""A learned number per head for every offset between two patches, added to the scores.

Relative positions as in arXiv:2103.14030, section 3.2. They may start local, with each head centred
on one neighbour: a soft convolution, as in arXiv:1911.03584.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from vitlab.nn.constants import constant
from vitlab.nn.init import position_table

Grid = tuple[int, int]
NEIGHBOURS = ((0, 1), (0, -1), (1, 0), (-1, 0), (1, 1), (-1, -1), (1, -1), (-1, 1), (0, 0))
"""Centres of the heads in turn, as row and column of key minus query."""
LOWEST = -8.0
"""Floor of a local start: distant patches get little weight, but can still be learned."""


class OffsetBias(nn.Module):
    """Bias added to the scores of each head, by row and column of key minus query."""

    def __init__(self, heads: int, *, grid: Grid, local: float) -> None:
        """With `local` 0 the table is initialised as other positions are."""
        super().__init__()
        self.table = position_table(heads, 2 * grid[0] - 1, 2 * grid[1] - 1)
        if local:
            with torch.no_grad():
                self.table.copy_(local_table(heads, grid, local))

    def forward(self, grid: Grid, prefix: int) -> Float[Tensor, "A N N"]:
        """Bias for every query and key; zero where one of them is a prefix token."""
        table = table_for(self.table, grid)
        index = offset_index_2d(grid, table.device)  # [P, P]
        bias = table.flatten(1).index_select(1, index.flatten()).unflatten(1, index.shape)
        return F.pad(bias, (prefix, 0, prefix, 0)) if prefix else bias


def local_table(heads: int, grid: Grid, local: float) -> Float[Tensor, "A h w"]:
    """`-local` times the squared distance to the head's centre, clipped at -8."""
    centres = [NEIGHBOURS[head % len(NEIGHBOURS)] for head in range(heads)]
    rows, columns = (torch.arange(1 - side, side, dtype=torch.float64) for side in grid)
    tables = [
        -local * ((rows[:, None] - row) ** 2 + (columns - column) ** 2) for row, column in centres
    ]
    return torch.stack(tables).clamp(min=LOWEST)


def table_for(table: Float[Tensor, "A h w"], grid: Grid) -> Float[Tensor, "A h2 w2"]:
    """Table of one grid adapted to another: an offset keeps its value, as in a convolution.

    Offsets beyond the table get the value of the nearest entry.
    """
    for axis, side in enumerate(grid, start=1):
        reach = table.shape[axis] // 2
        if side - 1 != reach:
            offsets = torch.arange(1 - side, side, device=table.device).clamp(-reach, reach)
            table = table.index_select(axis, offsets + reach)
    return table


@constant
def offset_index_2d(grid: Grid, device: torch.device) -> Int[Tensor, "P P"]:
    """Index into the flattened table for each query (row) and key (column)."""
    order = torch.arange(grid[0] * grid[1], device=device)
    rows, columns = order // grid[1], order % grid[1]
    down = rows - rows[:, None] + grid[0] - 1
    right = columns - columns[:, None] + grid[1] - 1
    return down * (2 * grid[1] - 1) + right
