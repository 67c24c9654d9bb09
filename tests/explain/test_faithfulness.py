"""Deletion and insertion, by hand and with a model whose every answer is known."""

from typing import Any

import numpy as np
import pytest
import torch
from scipy.ndimage import gaussian_filter1d
from torch import Tensor

from vitlab.explain.faithfulness import (
    BLUR,
    Perturbation,
    area,
    in_pixels,
    order_of,
    without,
)

B, C, H, W = 2, 3, 9, 10
GRID = (3, 5)
P = 15


def images() -> Tensor:
    return torch.randn(B, C, H, W, generator=torch.Generator().manual_seed(3))


def test_the_mean_colour_is_each_images_own() -> None:
    given = images()
    bare = without(given, "mean")
    for image in range(B):
        for channel in range(C):
            assert bare[image, channel].unique().tolist() == pytest.approx(
                [float(given[image, channel].mean())]
            )


def test_the_blur_is_a_gaussian() -> None:
    given = torch.randn(B, C, 40, 50, generator=torch.Generator().manual_seed(4)).double()
    deviation = BLUR * 40
    expected = given.numpy()
    for axis in (2, 3):
        reach = int(3 * deviation)
        expected = gaussian_filter1d(expected, deviation, axis=axis, mode="nearest", radius=reach)
    np.testing.assert_allclose(without(given, "blur").numpy(), expected, atol=1e-12)


def test_cells_to_pixels() -> None:
    cells = torch.zeros(B, P, dtype=torch.bool)
    cells[0, 1 * 5 + 3] = True
    mask = in_pixels(cells, GRID, images())
    assert mask.shape == (B, 1, H, W)
    expected = torch.zeros(H, W, dtype=torch.bool)
    expected[3:6, 6:8] = True
    assert torch.equal(mask[0, 0], expected)
    assert not mask[1].any()


def test_the_highest_go_first_and_equals_by_chance() -> None:
    draw = torch.Generator().manual_seed(0)
    values = torch.tensor([[[0.0, 3.0, 0.0], [1.0, 0.0, 2.0]]]).repeat(200, 1, 1)
    orders = order_of(values, draw)
    assert (orders[:, :3] == torch.tensor([1, 5, 3])).all()
    assert (orders.sort(dim=1).values == torch.arange(6)).all()
    # Each of three equal patches comes next about as often: 200 / 3, deviation below 7.
    counts = [(orders[:, 3] == patch).sum().item() for patch in (0, 2, 4)]
    assert min(counts) > 40


def test_area_is_that_of_trapezes() -> None:
    shares = np.array([0.0, 0.2, 0.7, 1.0])
    curves = np.array([[1.0, 0.5, 0.1, 0.0], [0.0, 1.0, 1.0, 1.0]])
    by_hand = [0.2 * 0.75 + 0.5 * 0.3 + 0.3 * 0.05, 0.1 + 0.8]
    np.testing.assert_allclose(area(shares, curves), by_hand)


def test_curves_of_a_model_that_reads_two_patches() -> None:
    """It believes in class 1 as far as patch 7 shows, and in class 0 as far as patch 11 shows."""
    given = torch.zeros(B, C, H, W)
    given[:, :, 3:6, 4:6] = 0.9  # patch 7
    given[:, :, 6:9, 2:4] = 0.6  # patch 11
    calls: list[int] = []

    def believe(batch: Tensor) -> Tensor:
        calls.append(len(batch))
        assert len(batch) <= 1
        return torch.stack([batch[:, 0, 7, 3], batch[:, 0, 4, 5]], dim=1)

    first = torch.arange(P).repeat(B, 1)
    orders: dict[str, Any] = {
        "true": torch.stack([torch.tensor([7, *(n for n in range(P) if n != 7)])] * B),
        "as they lie": first,
    }
    test = Perturbation(steps=5, batch_size=1)
    found = test.curves(believe, given, torch.tensor([1, 0]), orders, GRID)
    mean = (0.9 + 0.6) * 6 / (H * W)
    # Three patches a step; of image 0 patch 7 counts, of image 1 patch 11.
    assert found["true"].shares.tolist() == [0, 0.2, 0.4, 0.6, 0.8, 1.0]
    close: Any = {"rtol": 1e-6}
    np.testing.assert_allclose(found["true"].deletion[0], [0.9] + 5 * [mean], **close)
    np.testing.assert_allclose(found["true"].insertion[0], [mean] + 5 * [0.9], **close)
    lying = found["as they lie"]
    np.testing.assert_allclose(lying.deletion[0], 3 * [0.9] + 3 * [mean], **close)
    np.testing.assert_allclose(lying.deletion[1], 4 * [0.6] + 2 * [mean], **close)
    np.testing.assert_allclose(lying.insertion[1], 4 * [mean] + 2 * [0.6], **close)
    # Both ends are asked for once, four steps of two orders in both directions, image by image.
    assert len(calls) == B * (2 + 4 * 2 * 2)
