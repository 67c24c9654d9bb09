"""Position embeddings: the paper's (table 8, appendix D.4), sine-cosine, conditional, relative.

An additive position returns from `position(grid)` one row per token that has a position: first the
prefix tokens that have an entry, then the patches, row by row. A conditional one has no table: the
added vector depends on the tokens.
"""

from collections import OrderedDict
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from jaxtyping import Float, Int
from torch import Tensor, nn

from vitlab.nn.init import init_zero, position_table
from vitlab.nn.resize import ResizeMethod, resize_grid, resize_offsets

T = TypeVar("T")
LIMIT = 64


def constant(build: Callable[..., T]) -> Callable[..., T]:
    """Cache the results of `build` by its hashable arguments.

    Parameters are learned; these tensors follow from the configuration and are therefore not
    buffers: a model built on `meta` needs nothing but its weights.
    """
    cache: OrderedDict[Any, T] = OrderedDict()

    @wraps(build)
    def cached(*args: Any) -> T:
        # During export, a tensor that is already computed becomes a constant of the graph.
        if torch.compiler.is_compiling() and not (torch.compiler.is_exporting() and args in cache):
            return build(*args)
        if args in cache:
            cache.move_to_end(args)
            return cache[args]
        with torch.inference_mode(False), torch.no_grad(), torch.device("cpu"):
            result = build(*args)
        if _is_real(result):
            cache[args] = result
            if len(cache) > LIMIT:
                cache.popitem(last=False)
        return result

    return cached


def _is_real(result: Any) -> bool:
    """False for the fake tensors of tracing, which must not outlive their trace."""
    if isinstance(result, tuple | list):
        return all(_is_real(part) for part in result)
    return not isinstance(result, Tensor) or type(result) is Tensor


Grid = tuple[int, int]


class Learned1d(nn.Module):
    """One learned vector per token in raster order: the paper's default."""

    def __init__(
        self,
        width: int,
        *,
        grid: Grid,
        prefix: int,
        resize: ResizeMethod,
        std: float | None = None,
    ) -> None:
        super().__init__()
        self.grid = grid
        self.prefix = prefix
        self.resize: ResizeMethod = resize
        self.table = position_table(prefix + grid[0] * grid[1], width, std=std)

    def forward(self, grid: Grid) -> Float[Tensor, "N D"]:
        if grid == self.grid:
            return self.table
        prefix, patches = self.table.split([self.prefix, len(self.table) - self.prefix])
        patches = patches.unflatten(0, self.grid)  # [h, w, D]
        return torch.cat([prefix, resize_grid(patches, grid, self.resize).flatten(0, 1)])


class Learned2d(nn.Module):
    """Half of a vector from the column (X), half from the row (Y); prefix tokens have their own."""

    def __init__(
        self,
        width: int,
        *,
        grid: Grid,
        prefix: int,
        resize: ResizeMethod,
        std: float | None = None,
    ) -> None:
        super().__init__()
        self.resize: ResizeMethod = resize
        self.rows = position_table(grid[0], width // 2, std=std)
        self.columns = position_table(grid[1], width // 2, std=std)
        self.prefix = position_table(prefix, width, std=std)

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


@constant
def sincos_table(width: int, grid: Grid, over: Grid) -> Float[Tensor, "N D"]:
    """[sin x, cos x, sin y, cos y] at frequencies from 1 down to 1/10000."""
    frequencies = 1e4 ** -torch.linspace(0, 1, width // 4, dtype=torch.float64)
    x, y = (line[:, None] * frequencies for line in coordinates(grid, over))
    return torch.cat([x.sin(), x.cos(), y.sin(), y.cos()], dim=1)


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


def relative_scores(
    q: Float[Tensor, "B A N K"],
    offsets: Float[Tensor, "O K"],
    grid: Grid,
    prefix: int,
    scale: float | None = None,
) -> Float[Tensor, "B A N N"]:
    """Query · embedding of the offset (appendix D.4), scaled as the content scores are."""
    patches = grid[0] * grid[1]
    index = offset_index(patches, prefix, q.device)  # [N, N]
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    by_offset = (q * scale) @ resize_offsets(offsets, patches).T  # [B, A, N, offsets]
    return by_offset.gather(-1, index.expand(*q.shape[:2], -1, -1))


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

    def __init__(self, heads: int, *, grid: Grid, local: float = 0.0) -> None:
        """With `local` 0 the table is initialised as other positions are."""
        super().__init__()
        self.table = position_table(heads, 2 * grid[0] - 1, 2 * grid[1] - 1)
        if local and not self.table.is_meta:  # arange on meta imports torch._dynamo (1.4 s)
            with torch.no_grad():
                self.table.copy_(local_table(heads, grid, local))

    def forward(self, grid: Grid, prefix: int) -> Float[Tensor, "A N N"]:
        """Bias for every query and key; zero where one of them is a prefix token."""
        table = table_for(self.table, grid)
        index = offset_index_2d(grid, table.device)  # [P, P]
        bias = table.flatten(1).index_select(1, index.flatten()).unflatten(1, index.shape)
        return F.pad(bias, (prefix, 0, prefix, 0)) if prefix else bias


class PrefixedOffsetBias(OffsetBias):
    """Bias of BEiT (arXiv:2106.08254): prefix tokens have three entries of their own."""

    def __init__(self, heads: int, *, grid: Grid) -> None:
        super().__init__(heads, grid=grid)
        self.prefix = position_table(heads, 3)
        """Prefix to patch, patch to prefix, prefix to prefix; the query is named first."""

    def forward(self, grid: Grid, prefix: int) -> Float[Tensor, "A N N"]:
        bias = super().forward(grid, 0)
        outward, inward, inside = self.prefix[:, :, None, None].unbind(1)  # [A, 1, 1] each
        patches = bias.shape[-1]
        top = torch.cat([inside.expand(-1, prefix, prefix), outward.expand(-1, prefix, patches)], 2)
        return torch.cat([top, torch.cat([inward.expand(-1, patches, prefix), bias], 2)], 1)


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
