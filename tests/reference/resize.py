"""Position tables for another grid, one output entry at a time."""

import math

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def zoom(line: Array, length: int) -> Array:
    """Order 1, both ends kept: entry i lies at i (n - 1) / (length - 1)."""
    result = np.empty((length, *line.shape[1:]))
    for i in range(length):
        at = i * (len(line) - 1) / (length - 1) if length > 1 else 0.0
        low = min(math.floor(at), len(line) - 1)
        high = min(low + 1, len(line) - 1)
        result[i] = line[low] + (at - low) * (line[high] - line[low])
    return result


def cubic(x: float) -> float:
    """Keys' cubic kernel with a = -1/2, as Pillow's bicubic."""
    x = abs(x)
    if x < 1:
        return 1.5 * x**3 - 2.5 * x**2 + 1
    return -0.5 * x**3 + 2.5 * x**2 - 4 * x + 2 if x < 2 else 0.0


def bicubic(line: Array, length: int) -> Array:
    """Antialiased: the kernel is as wide as the coarser of both grids, and cut at the border."""
    result = np.empty((length, *line.shape[1:]))
    scale = len(line) / length
    for i in range(length):
        centre = (i + 0.5) * scale
        weights = [cubic((j + 0.5 - centre) / max(scale, 1.0)) for j in range(len(line))]
        result[i] = sum(w * value for w, value in zip(weights, line, strict=True)) / sum(weights)
    return result


def resized(table: Array, grid: tuple[int, int], method: str) -> Array:
    """A table [h, w, D] for another grid, one axis after the other."""
    resize = {"zoom": zoom, "bicubic": bicubic}[method]
    rows = resize(table, grid[0])
    return resize(rows.swapaxes(0, 1), grid[1]).swapaxes(0, 1)
