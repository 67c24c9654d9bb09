"""Patterns of attention against a decision per pair, and their grouped computation."""

import math

import pytest
import torch

from reference.looks import looks
from vitlab.nn.attention import dot_product_attention
from vitlab.nn.pattern import (
    Axial,
    Others,
    Pattern,
    Sliding,
    Sparse,
    attend_in_groups,
    pattern_groups,
    pattern_mask,
)

CPU = torch.device("cpu")
GRIDS = [(1, 1), (1, 7), (7, 1), (2, 3), (5, 7), (13, 5), (3, 23)]
PATTERNS: list[tuple[Pattern, str, int, int]] = [
    (Sliding(1), "sliding", 1, 0),
    (Sliding(3), "sliding", 3, 0),
    (Sliding(7), "sliding", 7, 0),
    (Axial("row"), "axial", 1, 0),
    (Axial("column"), "axial", 1, 1),
    (Sparse(2), "sparse", 2, 0),
    (Sparse(4), "sparse", 4, 0),
    (Sparse(5), "sparse", 5, 0),
    (Others(), "lsa", 1, 0),
]


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize(("pattern", "kind", "window", "layer"), PATTERNS)
def test_masks(pattern: Pattern, kind: str, window: int, layer: int, grid: tuple[int, int]) -> None:
    for prefix in (0, 1, 3):
        expected = looks(kind, grid=grid, prefix=prefix, window=window, layer=layer)
        assert expected is not None
        assert torch.equal(pattern_mask(pattern, grid, prefix, CPU), torch.from_numpy(expected))


@pytest.mark.parametrize("prefix", [0, 1, 3])
@pytest.mark.parametrize(
    "pattern", [Sliding(1), Sliding(3), Axial("row"), Axial("column")], ids=str
)
def test_groups_give_what_the_mask_gives(pattern: Pattern, prefix: int) -> None:
    """Groups are used where they are at most half of the work of the full matrix."""
    used = []
    for grid in GRIDS:
        groups = pattern_groups(pattern, grid, prefix, CPU)
        if groups is None:
            continue
        used.append(grid)
        tokens = prefix + math.prod(grid)
        assert 2 * groups.mask.numel() <= tokens**2
        q, k, v = torch.randn(3, 2, 3, tokens, 5, dtype=torch.float64)
        found = attend_in_groups(dot_product_attention, q, k, v, groups, prefix)
        mask = pattern_mask(pattern, grid, prefix, CPU)
        torch.testing.assert_close(found, dot_product_attention(q, k, v, mask))
    assert (13, 5) in used


@pytest.mark.parametrize(
    ("pattern", "grid"),
    [
        (Sliding(3), (13, 5)),
        (Sliding(7), (32, 32)),
        (Axial("row"), (7, 11)),
        (Axial("column"), (7, 11)),
    ],
    ids=str,
)
@pytest.mark.parametrize("prefix", [0, 1, 2])
def test_large_grids_are_computed_by_groups(
    pattern: Pattern, grid: tuple[int, int], prefix: int
) -> None:
    assert pattern_groups(pattern, grid, prefix, CPU) is not None


def test_every_patch_is_in_one_group() -> None:
    groups = pattern_groups(Sliding(3), (13, 5), 2, CPU)
    assert groups is not None
    flat = groups.queries.flatten()
    assert torch.equal(flat[groups.order], torch.arange(2, 2 + 65))
