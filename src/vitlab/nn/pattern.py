"""Sparse attention patterns, and their efficient computation.

A pattern defines for two patches, given by row and column, whether the first attends to the second;
prefix tokens attend to all tokens and are attended to by all.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from vitlab.nn.pos_embed import constant

Grid = tuple[int, int]


@dataclass(frozen=True)
class Sliding:
    """Each patch attends to a square neighbourhood of side `window`, cut at the borders."""

    window: int

    def sees(self, grid: Grid) -> Bool[Tensor, "P Q"]:
        rows, columns = _coordinates(grid)
        near_rows = (rows[:, None] - rows).abs() <= self.window // 2
        near_columns = (columns[:, None] - columns).abs() <= self.window // 2
        return near_rows & near_columns

    def groups(self, grid: Grid) -> list[Tensor]:
        """Bands of `window` rows: their keys are the band and half a window on both sides."""
        patches = torch.arange(grid[0] * grid[1]).view(grid)
        return [band.flatten() for band in patches.split(self.window)]


@dataclass(frozen=True)
class Axial:
    """Each patch attends to its row or its column: one half of an axial block (appendix D.6)."""

    axis: Literal["row", "column"]

    def sees(self, grid: Grid) -> Bool[Tensor, "P Q"]:
        rows, columns = _coordinates(grid)
        line = rows if self.axis == "row" else columns
        return line[:, None] == line

    def groups(self, grid: Grid) -> list[Tensor]:
        patches = torch.arange(grid[0] * grid[1]).view(grid)
        return list(patches.unbind(0 if self.axis == "row" else 1))


@dataclass(frozen=True)
class Sparse:
    """Strided attention of arXiv:1904.10509 in both directions along the raster order.

    A patch attends to half a stride before and after it, and to every `stride`-th patch from it on.
    """

    stride: int

    def sees(self, grid: Grid) -> Bool[Tensor, "P Q"]:
        order = torch.arange(grid[0] * grid[1])
        offset = order[:, None] - order
        return (offset.abs() <= self.stride // 2) | (offset % self.stride == 0)

    def groups(self, grid: Grid) -> list[Tensor]:
        """One group: the local windows of a residue class together already cover everything."""
        return [torch.arange(grid[0] * grid[1])]


@dataclass(frozen=True)
class Others:
    """Each token attends to all others, not itself: the diagonal mask of LSA, arXiv:2112.13492."""


@runtime_checkable
class PatchPattern(Protocol):
    """Attention pattern among the patches; hashable, also for custom patterns."""

    def sees(self, grid: Grid) -> Bool[Tensor, "Q R"]:
        """True where the patch of a row attends to the patch of a column."""
        ...

    def groups(self, grid: Grid) -> list[Tensor]:
        """All patches, in groups that share many of their keys."""
        ...


Pattern = PatchPattern | Others


class Groups(NamedTuple):
    """Patches grouped so that the queries of a group share their keys."""

    queries: Int[Tensor, "G M"]
    keys: Int[Tensor, "G N"]
    mask: Bool[Tensor, "G M N"]
    order: Int[Tensor, " P"]
    """Index of each patch in the flattened groups."""


@constant
def pattern_mask(
    pattern: Pattern, grid: Grid, prefix: int, device: torch.device
) -> Bool[Tensor, "N N"]:
    """True where the token of a row attends to the token of a column."""
    tokens = prefix + grid[0] * grid[1]
    if isinstance(pattern, Others):
        return ~torch.eye(tokens, dtype=torch.bool, device=device)
    mask = torch.ones(tokens, tokens, dtype=torch.bool)
    mask[prefix:, prefix:] = pattern.sees(grid)
    return mask.to(device)


@constant
def pattern_groups(
    pattern: Pattern, grid: Grid, prefix: int, device: torch.device
) -> Groups | None:
    """Groups of queries for a pattern, or None where the full matrix is cheaper."""
    if isinstance(pattern, Others):
        return None
    cpu = torch.device("cpu")
    sees = pattern_mask(pattern, grid, prefix, cpu)
    queries = [group + prefix for group in pattern.groups(grid)]
    keys = [sees[group].any(0).nonzero()[:, 0] for group in queries]
    most_queries, most_keys = max(map(len, queries)), max(map(len, keys))
    if 2 * len(queries) * most_queries * most_keys > sees.numel():
        return None
    # A shorter group repeats its last entry; a repeated key is masked, a repeated query not read.
    padded_queries = torch.stack([_pad(group, most_queries) for group in queries])
    padded_keys = torch.stack([_pad(group, most_keys) for group in keys])
    real = torch.stack([torch.arange(most_keys) < len(group) for group in keys])
    mask = sees[padded_queries[:, :, None], padded_keys[:, None]] & real[:, None]
    order = torch.empty(grid[0] * grid[1], dtype=torch.long)
    for number, group in enumerate(queries):
        order[group - prefix] = number * most_queries + torch.arange(len(group))
    parts = (padded_queries, padded_keys, mask, order)
    return Groups(*(part.to(device) for part in parts))


def attend_in_groups(
    attend: Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    groups: Groups,
    prefix: int,
) -> Tensor:
    """Attention of [B, A, N, K] by groups; `attend(q, k, v, mask)` computes one batch of them."""
    heads, count = q.shape[1], len(groups.queries)
    by_group = [
        part[:, :, index].flatten(1, 2)  # [B, A*G, M or N, K]
        for part, index in ((q, groups.queries), (k, groups.keys), (v, groups.keys))
    ]
    mask = groups.mask.repeat(heads, 1, 1)
    y = attend(by_group[0], by_group[1], by_group[2], mask)
    y = y.unflatten(1, (heads, count)).flatten(2, 3)[:, :, groups.order]  # [B, A, P, K]
    if not prefix:
        return y
    return torch.cat([attend(q[:, :, :prefix], k, v, None), y], dim=2)


def _coordinates(grid: Grid) -> tuple[Tensor, Tensor]:
    order = torch.arange(grid[0] * grid[1])
    return order // grid[1], order % grid[1]


def _pad(index: Tensor, length: int) -> Tensor:
    return torch.cat([index, index[-1:].expand(length - len(index))])
