"""Position embeddings patch by patch."""

import numpy as np
import pytest
import torch

from reference.positions import learned2d, places, relative_bias, rotated, sincos2d
from reference.random_weights import randomise
from reference.resize import resized
from vitlab.nn.pos_embed import (
    Learned1d,
    Learned2d,
    SinCos2d,
    coordinates,
    offset_index,
)
from vitlab.nn.resize import ResizeMethod
from vitlab.nn.rope import Rope

CPU = torch.device("cpu")
TOLERANCE = {"atol": 1e-12, "rtol": 1e-12}  # float64, other order of sums
# A different prime for every axis.
GRID, OTHER = (3, 7), (5, 2)
D, PREFIX = 14, 2

methods = pytest.mark.parametrize("method", ["bicubic", "zoom"])


@methods
def test_learned1d(method: ResizeMethod) -> None:
    position = Learned1d(D, grid=GRID, prefix=PREFIX, resize=method).double()
    randomise(position)
    table = position.table.detach()
    assert table.shape == (PREFIX + 21, D)
    assert torch.equal(position(GRID), table)
    found = position(OTHER).detach()
    assert torch.equal(found[:PREFIX], table[:PREFIX])
    expected = resized(table[PREFIX:].numpy().reshape(*GRID, D), OTHER, method).reshape(-1, D)
    torch.testing.assert_close(found[PREFIX:], torch.from_numpy(expected), **TOLERANCE)


@methods
def test_learned2d(method: ResizeMethod) -> None:
    position = Learned2d(D, grid=GRID, prefix=PREFIX, resize=method).double()
    randomise(position)
    p = {name: value.numpy() for name, value in position.state_dict().items()}
    assert {name: value.shape for name, value in p.items()} == {
        "rows": (3, D // 2),
        "columns": (7, D // 2),
        "prefix": (PREFIX, D),
    }
    expected = np.concatenate([p["prefix"], learned2d(p, GRID)])
    assert torch.equal(position(GRID).detach(), torch.from_numpy(expected))
    p["rows"] = resized(p["rows"][:, None], (OTHER[0], 1), method)[:, 0]
    p["columns"] = resized(p["columns"][:, None], (OTHER[1], 1), method)[:, 0]
    expected = np.concatenate([p["prefix"], learned2d(p, OTHER)])
    torch.testing.assert_close(position(OTHER).detach(), torch.from_numpy(expected), **TOLERANCE)


@pytest.mark.parametrize("over", [GRID, OTHER, (1, 1)])
def test_sincos2d(over: tuple[int, int]) -> None:
    position = SinCos2d(20, grid=over)
    assert not list(position.parameters())
    torch.testing.assert_close(
        position(GRID), torch.from_numpy(sincos2d(20, GRID, over)), **TOLERANCE
    )


def test_coordinates() -> None:
    x, y = coordinates(GRID, OTHER)
    expected = torch.tensor(places(GRID, OTHER), dtype=torch.float64)
    torch.testing.assert_close(torch.stack([x, y], dim=1), expected, **TOLERANCE)
    x, y = coordinates(GRID, GRID)
    assert y.tolist() == pytest.approx([row for row in range(3) for _ in range(7)])
    assert x.tolist() == pytest.approx([column for _ in range(3) for column in range(7)])


def test_coordinates_of_a_finer_grid_cover_the_same_image() -> None:
    """Twice the patches: the mean of two neighbours is the coarse patch that they fill."""
    x, _ = coordinates((1, 14), (1, 7))
    assert x.view(7, 2).mean(1).tolist() == pytest.approx(list(range(7)))


@pytest.mark.parametrize("prefix", [0, 1, 3])
@pytest.mark.parametrize("over", [GRID, OTHER])
def test_rope(over: tuple[int, int], prefix: int) -> None:
    rope = Rope(20, grid=over, theta=13.0)
    x = torch.randn(2, 5, prefix + 21, 20, dtype=torch.float64)
    found = rope(x, GRID, prefix)
    assert torch.equal(found[:, :, :prefix], x[:, :, :prefix])
    for image in range(2):
        for head in range(5):
            expected = rotated(x[image, head].numpy(), GRID, over, prefix=prefix, theta=13.0)
            torch.testing.assert_close(found[image, head], torch.from_numpy(expected), **TOLERANCE)


def test_rope_sees_only_how_far_apart_two_patches_are() -> None:
    rope = Rope(8, grid=(5, 7), theta=100.0)
    q, k = torch.randn(2, 1, 1, 1, 8, dtype=torch.float64).expand(2, 1, 1, 35, 8)
    scores = (rope(q, (5, 7), 0) @ rope(k, (5, 7), 0).mT).view(5, 7, 5, 7)
    for row, column in ((0, 1), (2, 0), (3, 4)):
        torch.testing.assert_close(
            scores[0, 0, row, column], scores[1, 2, 1 + row, 2 + column], **TOLERANCE
        )
    assert (scores[0, 0, 0, 1] - scores[0, 0, 1, 0]).abs() > 1e-6


@pytest.mark.parametrize("prefix", [0, 1, 3])
def test_offsets(prefix: int) -> None:
    tokens = prefix + 5
    q, offsets = torch.randn(tokens, 7).double(), torch.randn(9, 7).double()
    found = (q @ offsets.T).gather(1, offset_index(5, prefix, CPU))
    expected = relative_bias(q.numpy(), offsets.numpy(), prefix=prefix, scale=1.0)
    torch.testing.assert_close(found, torch.from_numpy(expected), **TOLERANCE)
