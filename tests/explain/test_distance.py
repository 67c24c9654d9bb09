"""How far and how widely heads look, against the definitions, one query at a time."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from vitlab.explain.statistics import (
    attention_distance,
    attention_entropy,
    patch_distances,
    prefix_share,
)

# A different prime for every axis; strides that are no whole numbers, as hybrids may have.
B, A, GRID, STRIDE = 2, 3, (3, 5), (7.5, 11.0)
PATCHES = GRID[0] * GRID[1]
# float64 on both sides: only the order of the sums differs.
TOLERANCE: dict[str, Any] = {"atol": 1e-12, "rtol": 1e-12}


def draw_weights(prefix: int, *, hidden: float = 0.0) -> Tensor:
    """Random rows that sum to one, some of their entries zero."""
    generator = torch.Generator().manual_seed(prefix)
    n = prefix + PATCHES
    scores = torch.randn(B, A, n, n, dtype=torch.float64, generator=generator)
    unseen = torch.rand(B, A, n, n, generator=generator) < hidden
    return scores.masked_fill(unseen, -torch.inf).softmax(dim=-1)


def distance_by_definition(weights: Tensor, prefix: int) -> float:
    """Of one head of one image."""
    found = []
    for query in range(PATCHES):
        row = weights[prefix + query, prefix:].numpy()
        if not row.sum():
            continue
        reached = 0.0
        for key in range(PATCHES):
            down = (query // GRID[1] - key // GRID[1]) * STRIDE[0]
            right = (query % GRID[1] - key % GRID[1]) * STRIDE[1]
            reached += row[key] / row.sum() * math.hypot(down, right)
        found.append(reached)
    return float(np.mean(found)) if found else math.nan


@pytest.mark.parametrize("prefix", [0, 1, 5])
def test_distance_matches_the_definition(prefix: int) -> None:
    weights = draw_weights(prefix, hidden=0.3)
    found = attention_distance(weights, GRID, prefix=prefix, stride=STRIDE)
    expected = [[distance_by_definition(weights[b, a], prefix) for a in range(A)] for b in range(B)]
    np.testing.assert_allclose(found, expected, **TOLERANCE)


def test_looking_evenly_is_the_mean_of_all_distances() -> None:
    even = torch.full((1, 1, 1 + PATCHES, 1 + PATCHES), 0.25, dtype=torch.float64)
    found = attention_distance(even, GRID, prefix=1, stride=STRIDE)
    np.testing.assert_allclose(found, patch_distances(GRID, STRIDE).mean(), **TOLERANCE)


def test_a_query_that_looks_at_no_patch_has_no_distance() -> None:
    weights = draw_weights(1)
    weights[0, 0, 3] = 0.0
    weights[0, 0, 3, 0] = 1.0  # all on the class token
    weights[1, 1, :, 1:] = 0.0
    found = attention_distance(weights, GRID, prefix=1, stride=STRIDE)
    np.testing.assert_allclose(found[0, 0], distance_by_definition(weights[0, 0], 1), **TOLERANCE)
    assert found.isnan().tolist() == [[False] * 3, [False, True, False]]


@pytest.mark.parametrize("prefix", [0, 2])
def test_entropy_matches_the_definition(prefix: int) -> None:
    weights = draw_weights(prefix, hidden=0.3)
    weights[0, 1, 4] = 0.0  # sees nothing, and is left out
    expected = np.zeros((B, A))
    for b in range(B):
        for a in range(A):
            rows = [row[row > 0] for row in weights[b, a].numpy() if row.sum()]
            expected[b, a] = np.mean([-(row * np.log(row)).sum() for row in rows])
    np.testing.assert_allclose(attention_entropy(weights), expected, **TOLERANCE)


def test_entropy_of_looking_evenly_is_the_logarithm_of_the_tokens() -> None:
    even = torch.full((1, 1, 7, 7), 1 / 7, dtype=torch.float64)
    np.testing.assert_allclose(attention_entropy(even), math.log(7), **TOLERANCE)


def test_the_share_of_prefix_tokens() -> None:
    weights = draw_weights(2)
    expected = weights.numpy()[:, :, 2:, :2].sum(axis=(2, 3)) / PATCHES
    np.testing.assert_allclose(prefix_share(weights, prefix=2), expected, **TOLERANCE)
    assert not prefix_share(weights, prefix=0).any()
