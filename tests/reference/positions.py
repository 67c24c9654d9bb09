"""Position embeddings patch by patch: paper, appendix D.4; big_vision's sincos; rotary ones."""

import cmath
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Grid = tuple[int, int]


def place(i: int, n: int, m: int, form: str) -> float:
    """Of patch i of n, in the coordinates of that form for m patches."""
    if form == "eva":
        return i / n * m
    if form == "pe":
        return (i + 1) / n * m
    if form == "dinov3":
        return 2 * math.pi * (-1 + (2 * i + 1) / n)
    return (i + 0.5) / n * m - 0.5


def rope_places(grid: Grid, over: Grid, form: str) -> list[tuple[float, float]]:
    """(column, row) of each patch, raster order; (row, column) in the forms of EVA and DINOv3."""
    found = [
        (place(column, grid[1], over[1], form), place(row, grid[0], over[0], form))
        for row in range(grid[0])
        for column in range(grid[1])
    ]
    if form == "mixed":
        return [(column, row) for row in range(grid[0]) for column in range(grid[1])]
    return [(y, x) for x, y in found] if form in ("eva", "dinov3") else found


def places(grid: Grid, over: Grid) -> list[tuple[float, float]]:
    """(column, row) of each patch, raster order, in units of the patches of the grid `over`.

    The centre of patch i of n lies at (i + 1/2) / n of the side, and patch j of m has its own
    centre at (j + 1/2) / m.
    """
    return [
        ((column + 0.5) / grid[1] * over[1] - 0.5, (row + 0.5) / grid[0] * over[0] - 0.5)
        for row in range(grid[0])
        for column in range(grid[1])
    ]


def sincos2d(width: int, grid: Grid, over: Grid) -> Array:
    """[sin x, cos x, sin y, cos y], each a quarter of the width, at frequencies 1 to 1/10000."""
    quarter = width // 4
    table = np.empty((grid[0] * grid[1], width))
    for patch, (x, y) in enumerate(places(grid, over)):
        for i in range(quarter):
            frequency = 10_000 ** -(i / (quarter - 1))
            table[patch, i] = math.sin(x * frequency)
            table[patch, i + quarter] = math.cos(x * frequency)
            table[patch, i + 2 * quarter] = math.sin(y * frequency)
            table[patch, i + 3 * quarter] = math.cos(y * frequency)
    return table


def learned2d(p: Mapping[str, Array], grid: Grid) -> Array:
    """[X embedding, Y embedding] for each patch, in raster order."""
    return np.array(
        [[*p["columns"][x], *p["rows"][y]] for y in range(grid[0]) for x in range(grid[1])]
    )


def conditional(patches: Array, p: Mapping[str, Array], grid: Grid) -> Array:
    """Of each patch [N, D]: its neighbours times the kernel, channel by channel, and the bias.

    Beyond the border there is nothing (arXiv:2102.10882).
    """
    result = np.empty_like(patches)
    for row in range(grid[0]):
        for column in range(grid[1]):
            total = p["bias"].copy()
            for y in (-1, 0, 1):
                for x in (-1, 0, 1):
                    if 0 <= row + y < grid[0] and 0 <= column + x < grid[1]:
                        neighbour = patches[(row + y) * grid[1] + column + x]
                        total += p["weight"][:, 0, y + 1, x + 1] * neighbour
            result[row * grid[1] + column] = total
    return result


def rotated(
    vectors: Array,
    grid: Grid,
    over: Grid,
    *,
    prefix: int,
    theta: float,
    form: str = "axial",
    periods: Sequence[float] | None = None,
    freqs: Array | None = None,
) -> Array:
    """Queries or keys [N, K]: each pair of neighbours is a complex number that is turned.

    The first half of a head turns with the column, the second half with the row, the i-th pair of
    a half of n pairs by theta^(-i/n), or the inverse of a period, for each patch; prefix tokens
    stand still. With `freqs` [2, pairs], every pair turns with the column and with the row.
    """
    kind: dict[str, Any] = {"theta": theta, "form": form, "periods": periods, "freqs": freqs}
    patches = [
        turned(vector, at, **kind)
        for vector, at in zip(vectors[prefix:], rope_places(grid, over, form), strict=True)
    ]
    return np.array([*vectors[:prefix], *patches])


def _turn(pair: Array, angle: float) -> tuple[float, float]:
    moved = complex(*pair) * cmath.exp(1j * angle)
    return moved.real, moved.imag


def turned(
    vector: Array,
    place: Sequence[float],
    *,
    theta: float,
    form: str = "axial",
    periods: Sequence[float] | None = None,
    freqs: Array | None = None,
) -> Array:
    """A query or key [K] of a patch at column and row `place`.

    DINOv3 pairs a channel of the first half with the same one of the second.
    """
    result = vector.copy()
    if freqs is not None:
        for i, (by_column, by_row) in enumerate(freqs.T):
            angle = place[0] * by_column + place[1] * by_row
            result[2 * i : 2 * i + 2] = _turn(vector[2 * i : 2 * i + 2], angle)
        return result
    pairs = len(vector) // 4
    for axis, distance in enumerate(place):
        for i in range(pairs):
            number = axis * pairs + i
            two = [2 * number, 2 * number + 1]
            if form == "dinov3":
                two = [number, number + 2 * pairs]
            period = theta ** (i / pairs) if periods is None else periods[i]
            result[two] = _turn(vector[two], distance / period)
    return result


def offset_bias(table: Array, grid: Grid, *, prefix: int) -> Array:
    """Scores of one head: the entry of (row, column) of key minus query, zero is in the middle.

    Beyond the table, the entry of its edge.
    """
    down_most, right_most = len(table) // 2, table.shape[1] // 2
    tokens = prefix + grid[0] * grid[1]
    bias = np.zeros((tokens, tokens))
    for m in range(prefix, tokens):
        for n in range(prefix, tokens):
            query, key = divmod(m - prefix, grid[1]), divmod(n - prefix, grid[1])
            down, right = key[0] - query[0], key[1] - query[1]
            row = down_most + min(max(down, -down_most), down_most)
            bias[m, n] = table[row, right_most + min(max(right, -right_most), right_most)]
    return bias


def beit_bias(table: Array, own: Array, grid: Grid, *, prefix: int) -> Array:
    """The same with three entries of prefix tokens: to a patch, from a patch, among themselves."""
    bias = offset_bias(table, grid, prefix=prefix)
    bias[:prefix, prefix:], bias[prefix:, :prefix], bias[:prefix, :prefix] = own
    return bias


def relative_bias(q: Array, offsets: Array, *, prefix: int, scale: float) -> Array:
    """Scores of the query against the embedding of p_q - p_k, positions along the raster order.

    `offsets` holds one row for each of -(n-1) … n-1; a prefix token is at offset zero to all.
    """
    tokens = len(q)
    middle = len(offsets) // 2
    bias = np.empty((tokens, tokens))
    for m in range(tokens):
        for n in range(tokens):
            among_patches = m >= prefix and n >= prefix
            offset = (m - prefix) - (n - prefix) if among_patches else 0
            bias[m, n] = scale * (q[m] @ offsets[middle + offset])
    return bias
