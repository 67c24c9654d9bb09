"""Position tables for another grid: the original's order-1 zoom, and antialiased bicubic."""

from typing import Literal

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

ResizeMethod = Literal["bicubic", "zoom"]


def resize_grid(
    table: Float[Tensor, "h w D"], grid: tuple[int, int], method: ResizeMethod
) -> Float[Tensor, "h2 w2 D"]:
    """The table of a grid resampled to another grid, in the table's own precision."""
    if (table.shape[0], table.shape[1]) == grid:
        return table
    if method == "zoom":
        columns = _linear(_double(table), grid[0]).transpose(0, 1)  # [w, h2, D]
        return _linear(columns, grid[1]).transpose(0, 1).to(table)
    return _bicubic(table, grid)


def resize_offsets(table: Float[Tensor, "O K"], length: int) -> Float[Tensor, "O2 K"]:
    """A table of the offsets between n positions, for `length` positions; the ends stay."""
    if table.shape[0] == 2 * length - 1:
        return table
    if length == 1:
        return table[len(table) // 2][None]  # offset zero
    return _linear(_double(table), 2 * length - 1).to(table)


def _double(table: Tensor) -> Tensor:
    """Convert to float64, which Apple's GPUs do not support."""
    return (table.cpu() if table.device.type == "mps" else table).double()


def _bicubic(table: Float[Tensor, "h w D"], grid: tuple[int, int]) -> Float[Tensor, "h2 w2 D"]:
    if grid[1] == 1 and grid[0] > 1:  # torch's antialiasing repeats one row in a single column
        return _bicubic(table.transpose(0, 1), (1, grid[0])).transpose(0, 1)
    dtype = table.dtype if table.dtype == torch.float64 else torch.float32
    image = rearrange(table, "h w d -> 1 d h w").to(dtype)
    resized = F.interpolate(image, size=grid, mode="bicubic", align_corners=False, antialias=True)
    return rearrange(resized, "1 d h w -> h w d").to(table.dtype)


def _linear(table: Float[Tensor, "n ..."], length: int) -> Float[Tensor, "n2 ..."]:
    """Linear interpolation along the first axis with both ends kept, as `scipy.ndimage.zoom`."""
    last = table.shape[0] - 1
    step = last / (length - 1) if length > 1 else 1.0
    at = torch.arange(length, dtype=torch.float64, device=table.device) * step
    low = at.floor().long().clamp(0, max(last - 1, 0))
    high = (low + 1).clamp(max=last)
    weight = (at - low).clamp(0.0, 1.0).reshape(-1, *(1,) * (table.ndim - 1))
    return table[low] * (1.0 - weight) + table[high] * weight
