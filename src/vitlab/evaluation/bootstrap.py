"""Bootstrap intervals: variation of a metric over other images of the same kind (Efron, 1979)."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

DRAWS = 1000
BUSY = 10_000_000
"""Approximate total of drawn numbers; large sets need fewer draws."""
LEAST_DRAWS = 100
SHARE = 0.95


def interval(
    figure: Callable[[NDArray[np.int64]], float], images: int, *, columns: int = 1
) -> tuple[float, float]:
    """Central 95 % of a metric over draws of rows with replacement; deterministic."""
    draw = np.random.default_rng(0)
    draws = max(LEAST_DRAWS, min(DRAWS, BUSY // (images * columns)))
    found = [figure(draw.integers(images, size=images)) for _ in range(draws)]
    tail = (1 - SHARE) / 2
    low, high = np.quantile(np.array(found), [tail, 1 - tail])
    return float(low), float(high)
