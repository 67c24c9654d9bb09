"""Position embeddings: the paper's (table 8, appendix D.4), sine-cosine, rotary, conditional ones.

An additive position returns from `position(grid)` one row per token that has a position: first the
prefix tokens that have an entry, then the patches, row by row. A conditional one has no table: the
added vector depends on the tokens.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from jaxtyping import Float, Int
from torch import Tensor, nn

from vitlab.nn.constants import constant
from vitlab.nn.init import init_zero, position_table
from vitlab.nn.resize import ResizeMethod, resize_grid

Grid = tuple[int, int]
Places = Float[Tensor, "B P 2"]
"""Column and row of each patch of each image, where they are not those of a grid."""


class Learned1d(nn.Module):
    """One learned vector per token in raster order: the paper's default."""

    def __init__(self, width: int, *, grid: Grid, prefix: int, resize: ResizeMethod) -> None:
        super().__init__()
        self.grid = grid
        self.prefix = prefix
        self.resize: ResizeMethod = resize
        self.table = position_table(prefix + grid[0] * grid[1], width)

    def forward(self, grid: Grid) -> Float[Tensor, "N D"]:
        if grid == self.grid:
            return self.table
        prefix, patches = self.table.split([self.prefix, len(self.table) - self.prefix])
        patches = patches.unflatten(0, self.grid)  # [h, w, D]
        return torch.cat([prefix, resize_grid(patches, grid, self.resize).flatten(0, 1)])


class Learned2d(nn.Module):
    """Half of a vector from the column (X), half from the row (Y); prefix tokens have their own."""

    def __init__(self, width: int, *, grid: Grid, prefix: int, resize: ResizeMethod) -> None:
        super().__init__()
        self.resize: ResizeMethod = resize
        self.rows = position_table(grid[0], width // 2)
        self.columns = position_table(grid[1], width // 2)
        self.prefix = position_table(prefix, width)

    def forward(self, grid: Grid) -> Float[Tensor, "N D"]:
        rows = resize_grid(self.rows[:, None], (grid[0], 1), self.resize)[:, 0]
        columns = resize_grid(self.columns[:, None], (grid[1], 1), self.resize)[:, 0]
        x = repeat(columns, "w d -> (h w) d", h=grid[0])
        y = repeat(rows, "h d -> (h w) d", w=grid[1])
        return torch.cat([self.prefix, torch.cat([x, y], dim=1)])


class SinCos2d(nn.Module):
    """The fixed table of big_vision and MoCo v3: sine and cosine of column and row."""

    def __init__(self, width: int, *, grid: Grid) -> None:
        super().__init__()
        self.width = width
        self.grid = grid

    def forward(self, grid: Grid) -> Float[Tensor, "N D"]:
        return sincos_table(self.width, grid, self.grid)


class Conditional(nn.Module):
    """Conditional positions, computed from the neighbouring patches, arXiv:2102.10882.

    A depthwise 3x3 convolution whose zero padding marks the border. It starts at zero, so that a
    model begins as one without positions.
    """

    def __init__(self, width: int, *, prefix: int) -> None:
        super().__init__()
        self.prefix = prefix
        self.conv = nn.Conv2d(width, width, 3, padding=1, groups=width)
        init_zero(self.conv)

    def forward(self, x: Float[Tensor, "B N D"], grid: Grid) -> Float[Tensor, "B N D"]:
        """Tokens with positions added; prefix tokens are unchanged."""
        patches = x[:, self.prefix :]
        # A view in channels-last layout, in which convolutions are fastest.
        image = rearrange(patches, "b (h w) d -> b d h w", h=grid[0])
        patches = patches + rearrange(self.conv(image), "b d h w -> b (h w) d")
        return torch.cat([x[:, : self.prefix], patches], dim=1) if self.prefix else patches


Added = Float[Tensor, "N D"] | Conditional
"""Positions added to tokens: a table, or a convolution of the tokens."""


def add_position(x: Float[Tensor, "B N D"], added: Added, grid: Grid) -> Float[Tensor, "B N D"]:
    """Tokens with positions added."""
    return added(x, grid) if isinstance(added, Conditional) else x + added


class Rope(nn.Module):
    """Rotary positions in two dimensions: half of a head by column, half by row.

    arXiv:2104.09864, axial as in arXiv:2403.13298; prefix tokens are not rotated.
    """

    def __init__(self, head_width: int, *, grid: Grid, theta: float) -> None:
        super().__init__()
        self.head_width = head_width
        self.grid = grid
        self.theta = theta

    def forward(
        self,
        x: Float[Tensor, "B A N K"],
        grid: Grid,
        prefix: int,
        places: Places | None = None,
    ) -> Float[Tensor, "B A N K"]:
        """Tokens rotated by their place on the grid, or by `places` in patches of its grid."""
        if places is None:
            cos, sin = rotations(self.head_width, self.theta, grid, self.grid, x.device, x.dtype)
        else:
            turns = angles(places[:, None].unbind(-1), self.head_width, self.theta)
            cos, sin = turns.cos().to(x.dtype), turns.sin().to(x.dtype)  # [B, 1, P, K2]
        patches = rearrange(x[:, :, prefix:], "b a n (k two) -> two b a n k", two=2)
        even = patches[0] * cos - patches[1] * sin
        odd = patches[0] * sin + patches[1] * cos
        turned = rearrange([even, odd], "two b a n k -> b a n (k two)")
        return torch.cat([x[:, :, :prefix], turned], dim=2) if prefix else turned


@constant
def sincos_table(width: int, grid: Grid, over: Grid) -> Float[Tensor, "N D"]:
    """[sin x, cos x, sin y, cos y] at frequencies from 1 down to 1/10000."""
    frequencies = 1e4 ** -torch.linspace(0, 1, width // 4, dtype=torch.float64)
    x, y = (line[:, None] * frequencies for line in coordinates(grid, over))
    return torch.cat([x.sin(), x.cos(), y.sin(), y.cos()], dim=1)


@constant
def rotations(
    head_width: int,
    theta: float,
    grid: Grid,
    over: Grid,
    device: torch.device,
    dtype: torch.dtype,
) -> tuple[Float[Tensor, "N K2"], Float[Tensor, "N K2"]]:
    """Cosine and sine of the rotation angle of every pair of channels of a head, per patch."""
    turns = angles(coordinates(grid, over), head_width, theta)
    return turns.cos().to(device, dtype), turns.sin().to(device, dtype)


def angles(
    lines: Sequence[Float[Tensor, "*P"]], head_width: int, theta: float
) -> Float[Tensor, "*P K2"]:
    """Rotation angle of each pair of channels of a head, half by column, half by row."""
    device = lines[0].device
    exact = torch.float32 if device.type == "mps" else torch.float64  # which Apple's GPUs lack
    steps = torch.arange(head_width // 4, dtype=exact, device=device)
    speeds = theta ** -(steps / (head_width // 4))
    return torch.cat([line[..., None] * speeds for line in lines], dim=-1)


def coordinates(grid: Grid, over: Grid) -> tuple[Float[Tensor, " N"], Float[Tensor, " N"]]:
    """Column and row of each patch's centre, measured in patches of the grid `over`."""
    lines = [
        (torch.arange(size, dtype=torch.float64) + 0.5) * (span / size) - 0.5
        for size, span in zip(grid, over, strict=True)
    ]
    y, x = torch.meshgrid(lines[0], lines[1], indexing="ij")
    return x.flatten(), y.flatten()


@constant
def offset_index(patches: int, prefix: int, device: torch.device) -> Int[Tensor, "N N"]:
    """Row of the offset table for each query and key; prefix tokens are at offset zero."""
    order = torch.arange(patches, device=device)
    index = torch.full((prefix + patches, prefix + patches), patches - 1, device=device)
    index[prefix:, prefix:] = order[:, None] - order + patches - 1
    return index


# A learned number per head for every offset between two patches, added to the scores.
#
# Relative positions as in arXiv:2103.14030, section 3.2. They may start local, each head looking at
# one neighbour: a soft convolution, as in arXiv:1911.03584.

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
