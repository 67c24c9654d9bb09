"""CKA against its definitions, written out."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitlab.explain.embedding import linear_cka, unbiased_cka

Array = NDArray[np.float64]

LAYERS, N, P = 3, 11, 5
# float64 on both sides: only the order of the sums differs.
TOLERANCE: dict[str, Any] = {"atol": 1e-10, "rtol": 1e-10}


def layers(n: int = N, p: int = P) -> Tensor:
    """Features with means far from zero; the second layer has something of the first."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(LAYERS, n, p, dtype=torch.float64, generator=generator)
    x[1] += 0.7 * x[0]
    return x + torch.arange(LAYERS)[:, None, None] * 2.5


def cka_by_definition(x: Array, y: Array) -> float:
    """Kornblith et al., equation 5 and the text below it."""
    x, y = x - x.mean(axis=0), y - y.mean(axis=0)
    between = np.linalg.norm(y.T @ x, "fro") ** 2
    return float(between / np.linalg.norm(x.T @ x, "fro") / np.linalg.norm(y.T @ y, "fro"))


def unbiased_hsic(x: Array, y: Array) -> float:
    """Song et al., 2012: the estimate over all groups of four different images, by its formula."""
    n = len(x)
    k, m = x @ x.T, y @ y.T
    np.fill_diagonal(k, 0.0)
    np.fill_diagonal(m, 0.0)
    one = np.ones(n)
    middle = (one @ k @ one) * (one @ m @ one) / ((n - 1) * (n - 2))
    return float((np.trace(k @ m) + middle - 2 / (n - 2) * (one @ k @ m @ one)) / (n * (n - 3)))


@pytest.mark.parametrize(("n", "p"), [(11, 5), (7, 13)])
def test_linear_cka_matches_the_definition(n: int, p: int) -> None:
    x = layers(n, p)
    expected = [[cka_by_definition(a, b) for b in x.numpy()] for a in x.numpy()]
    np.testing.assert_allclose(linear_cka(x), expected, **TOLERANCE)


@pytest.mark.parametrize(("n", "p"), [(11, 5), (7, 13)])
def test_unbiased_cka_matches_the_definition(n: int, p: int) -> None:
    x = layers(n, p)
    hsic = np.array([[unbiased_hsic(a, b) for b in x.numpy()] for a in x.numpy()])
    own = np.sqrt(hsic.diagonal())
    np.testing.assert_allclose(unbiased_cka(x), hsic / own / own[:, None], **TOLERANCE)


def test_turning_moving_and_scaling_features_changes_nothing() -> None:
    x = layers()[0]
    turn, _ = torch.linalg.qr(layers(P, P)[1])
    moved = 3.0 * x @ turn + 7.0
    for cka in (linear_cka, unbiased_cka):
        np.testing.assert_allclose(cka(torch.stack([x, moved])), np.ones((2, 2)), **TOLERANCE)


def test_features_that_have_nothing_in_common() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 64, 256, generator=generator)
    assert linear_cka(x)[0, 1] > 0.7  # what the bias amounts to
    assert abs(unbiased_cka(x)[0, 1]) < 0.05


def test_a_layer_in_which_all_images_are_the_same_is_like_no_other() -> None:
    x = layers()
    x[2] = 1.0
    for cka in (linear_cka, unbiased_cka):
        assert cka(x).isnan().tolist() == [[False] * 2 + [True]] * 2 + [[True] * 3]


def test_three_images_are_too_few() -> None:
    with pytest.raises(ValueError, match="3 images; unbiased CKA needs at least 4"):
        unbiased_cka(layers(3))
