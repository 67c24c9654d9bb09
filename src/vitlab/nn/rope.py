"""Rotary positions in two dimensions (arXiv:2104.09864, arXiv:2403.13298).

Queries and keys of the patches are rotated by angles that follow from their place on the grid;
prefix tokens are not rotated. The forms of several authors differ in the coordinates, in the order
of column and row, and in the channels that form a pair.
"""

import math
from collections.abc import Sequence
from typing import Literal

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from vitlab.nn.pos_embed import constant, coordinates

Grid = tuple[int, int]
Form = Literal["axial", "eva", "pe", "dinov3"]
RopeForm = Literal[Form, "mixed"]
Periods = tuple[float, ...]
Places = Float[Tensor, "B P 2"]
"""Coordinates of each patch of each image, where they are not those of a grid."""


class Rope(nn.Module):
    """Fixed rotary positions: half of a head by column, half by row."""

    def __init__(
        self,
        head_width: int,
        *,
        grid: Grid,
        theta: float = 100.0,
        form: Form = "axial",
        periods: Periods | None = None,
    ) -> None:
        """`periods` of the pairs of one direction replace those that follow from `theta`."""
        super().__init__()
        self.grid = grid
        self.form: Form = form
        steps = range(head_width // 4)
        self.periods = periods or tuple(theta ** (step / (head_width // 4)) for step in steps)
        # A pair is two neighbours, or the same channel of both halves of a head.
        self.channels = "(two k)" if form == "dinov3" else "(k two)"

    def forward(
        self, x: Float[Tensor, "B A N K"], grid: Grid, prefix: int, places: Places | None = None
    ) -> Float[Tensor, "B A N K"]:
        """Tokens rotated by their place on the grid, or by `places` as `lines` has them."""
        if places is None:
            turns = rotations(self.form, self.periods, grid, self.grid, x.device, x.dtype)
        else:
            angles = rotary_angles(places[:, None].unbind(-1), self.periods)  # [B, 1, P, K2]
            turns = (angles.cos().to(x.dtype), angles.sin().to(x.dtype))
        return rotated(x, turns, prefix, self.channels)

    def lines(self, grid: Grid) -> tuple[Float[Tensor, " N"], Float[Tensor, " N"]]:
        """Coordinates of each patch, in the order in which they rotate the channels."""
        return rope_lines(self.form, grid, self.grid)


class MixedRope(nn.Module):
    """Rotary positions whose frequencies are learned for each head (RoPE-Mixed).

    A pair of channels is rotated by column times one frequency plus row times another. The table
    starts with the frequencies of `theta`, turned by a random angle for each head.
    """

    channels = "(k two)"

    def __init__(self, heads: int, head_width: int, *, theta: float) -> None:
        super().__init__()
        self.freqs = nn.Parameter(torch.empty(2, heads, head_width // 2))
        if not self.freqs.is_meta:
            speeds = theta ** -(torch.arange(head_width // 4) / (head_width // 4))
            angle = torch.rand(heads, 1) * 2 * math.pi
            start = torch.cat([speeds * angle.cos(), -speeds * angle.sin()], dim=1)
            across = torch.cat([speeds * angle.sin(), speeds * angle.cos()], dim=1)
            with torch.no_grad():
                self.freqs.copy_(torch.stack([start, across]))

    def forward(
        self, x: Float[Tensor, "B A N K"], grid: Grid, prefix: int, places: Places | None = None
    ) -> Float[Tensor, "B A N K"]:
        """Tokens rotated by their place on the grid, or by `places` in columns and rows."""
        if places is None:
            columns, rows = mixed_lines(grid, x.device)
        else:
            columns, rows = places[:, None].unbind(-1)  # [B, 1, P]
        exact = torch.promote_types(self.freqs.dtype, torch.float32)
        by_column, by_row = self.freqs[:, :, None].to(exact)  # [A, 1, K2]
        angles = columns.to(exact)[..., None] * by_column + rows.to(exact)[..., None] * by_row
        turns = (angles.cos().to(x.dtype), angles.sin().to(x.dtype))  # [*B, A, P, K2]
        return rotated(x, turns, prefix, self.channels)

    def lines(self, grid: Grid) -> tuple[Float[Tensor, " N"], Float[Tensor, " N"]]:
        """Column and row of each patch."""
        return coordinates(grid, grid)


def rotated(
    x: Float[Tensor, "B A N K"], turns: tuple[Tensor, Tensor], prefix: int, channels: str
) -> Float[Tensor, "B A N K"]:
    """Tokens behind the prefix, each pair of channels rotated by its angle."""
    cos, sin = turns
    patches = rearrange(x[:, :, prefix:], f"b a n {channels} -> two b a n k", two=2)
    even = patches[0] * cos - patches[1] * sin
    odd = patches[0] * sin + patches[1] * cos
    turned = rearrange([even, odd], f"two b a n k -> b a n {channels}")
    return torch.cat([x[:, :, :prefix], turned], dim=2) if prefix else turned


@constant
def rotations(
    form: Form, periods: Periods, grid: Grid, over: Grid, device: torch.device, dtype: torch.dtype
) -> tuple[Float[Tensor, "N K2"], Float[Tensor, "N K2"]]:
    """Cosine and sine of the rotation angle of every pair of channels of a head, per patch."""
    angles = rotary_angles(rope_lines(form, grid, over), periods)
    return angles.cos().to(device, dtype), angles.sin().to(device, dtype)


@constant
def mixed_lines(
    grid: Grid, device: torch.device
) -> tuple[Float[Tensor, " N"], Float[Tensor, " N"]]:
    """Column and row of each patch, on the device of the model."""
    columns, rows = coordinates(grid, grid)
    return columns.float().to(device), rows.float().to(device)


def rope_lines(
    form: Form, grid: Grid, over: Grid
) -> tuple[Float[Tensor, " N"], Float[Tensor, " N"]]:
    """Coordinates of each patch, those of the first half of a head first.

    | form | order | coordinate of patch i of n, for the grid m |
    |---|---|---|
    | axial | column, row | (i + 1/2) m / n - 1/2 |
    | eva | row, column | i m / n |
    | pe | column, row | (i + 1) m / n |
    | dinov3 | row, column | 2 pi (2 (i + 1/2) / n - 1) |
    """
    if form == "dinov3":
        x, y = (line * 2 * math.pi for line in coordinates(grid, (2, 2)))
        return y - math.pi, x - math.pi
    x, y = coordinates(grid, over)
    if form == "axial":
        return x, y
    step = 0.5 if form == "pe" else -0.5
    x, y = x + 0.5 + step * over[1] / grid[1], y + 0.5 + step * over[0] / grid[0]
    return (x, y) if form == "pe" else (y, x)


def rotary_angles(lines: Sequence[Float[Tensor, "*P"]], periods: Periods) -> Float[Tensor, "*P K2"]:
    """Rotation angle of each pair of channels of a head, half by each line."""
    device = lines[0].device
    exact = torch.float32 if device.type == "mps" else torch.float64  # which Apple's GPUs lack
    speeds = 1 / torch.tensor(periods, dtype=exact, device=device)
    return torch.cat([line[..., None] * speeds for line in lines], dim=-1)
