"""Who looks at whom, decided pair by pair."""

import numpy as np
from numpy.typing import NDArray

Grid = tuple[int, int]


def sees(kind: str, query: int, key: int, *, grid: Grid, window: int, layer: int) -> bool:
    """Whether patch `query` looks at patch `key`, both counted along the raster order."""
    (row_q, column_q), (row_k, column_k) = divmod(query, grid[1]), divmod(key, grid[1])
    if kind == "sliding":
        # A square of side `window` with the query in its middle.
        reach = (window - 1) // 2
        return abs(row_q - row_k) <= reach and abs(column_q - column_k) <= reach
    if kind == "axial":
        return row_q == row_k if layer % 2 == 0 else column_q == column_k
    if kind == "sparse":
        # arXiv:1904.10509, section 4.3, in both directions: near ones, and every window-th one.
        return abs(query - key) <= window // 2 or (query - key) % window == 0
    return True


def looks(
    kind: str, *, grid: Grid, prefix: int, window: int, layer: int
) -> NDArray[np.bool_] | None:
    """[N, N]: true where the token of a row looks at that of a column; None: everywhere.

    Prefix tokens see all and are seen by all, but for LSA, where no token looks at itself.
    """
    if kind == "full":
        return None
    tokens = prefix + grid[0] * grid[1]
    mask = np.ones((tokens, tokens), dtype=bool)
    for m in range(tokens):
        for n in range(tokens):
            if kind == "lsa":
                mask[m, n] = m != n
            elif m >= prefix and n >= prefix:
                mask[m, n] = sees(
                    kind, m - prefix, n - prefix, grid=grid, window=window, layer=layer
                )
    return mask
