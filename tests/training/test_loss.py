"""Losses against their definitions, written out image by image and class by class."""

import math

import pytest
import torch

from vitlab.training.loss import (
    binary_cross_entropy,
    cross_entropy,
    squared_error,
    weighted_cross_entropy,
)

B, K = 7, 5


def drawn() -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    return torch.randn(B, K, generator=draw), torch.rand(B, K, generator=draw)


def plain_cross_entropy(logits: torch.Tensor, shares: torch.Tensor, weights: list[float]) -> float:
    """Every image's cross-entropy, and its weight; the mean over the images."""
    total = 0.0
    for row, share, weight in zip(
        logits.double().tolist(), shares.double().tolist(), weights, strict=True
    ):
        whole = math.log(sum(math.exp(x) for x in row))
        total += weight * sum(s * (whole - x) for s, x in zip(share, row, strict=True))
    return total / len(logits)


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("mixed", [True, False])
def test_weighted_cross_entropy_is_the_definition(mixed: bool, smoothing: float) -> None:
    logits, shares = drawn()
    weights = torch.tensor([0.5, 2.0, 1.0, 7.0, 0.0])
    numbers = torch.arange(B) % K
    shares = shares.softmax(dim=1) if mixed else torch.nn.functional.one_hot(numbers, K).float()
    smooth = shares * (1 - smoothing) + smoothing / K
    each = (shares.double() @ weights.double()).tolist()
    found = weighted_cross_entropy(weights)(logits, shares if mixed else numbers, smoothing)
    # float32 sums of a few dozen terms of order one.
    assert found.item() == pytest.approx(plain_cross_entropy(logits, smooth, each), rel=1e-5)


def test_equal_weights_change_nothing() -> None:
    logits, _ = drawn()
    numbers = torch.arange(B) % K
    torch.testing.assert_close(
        weighted_cross_entropy(torch.ones(K))(logits, numbers, 0.1),
        cross_entropy(logits, numbers, 0.1),
    )


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_binary_cross_entropy_is_the_definition(weighted: bool, smoothing: float) -> None:
    logits, targets = drawn()
    weights = torch.tensor([[0.5, 1, 1, 2, 3], [4.0, 1, 0.25, 2, 1]]) if weighted else None
    total = 0.0
    for b in range(B):
        for k in range(K):
            x, t = float(logits[b, k]), float(targets[b, k])
            weight = 1.0
            if weights is not None:
                weight = float(weights[0, k]) * (1 - t) + float(weights[1, k]) * t
            t = t * (1 - smoothing) + smoothing / 2
            p = 1 / (1 + math.exp(-x))
            total -= weight * (t * math.log(p) + (1 - t) * math.log(1 - p))
    found = binary_cross_entropy(weights)(logits, targets, smoothing)
    assert found.item() == pytest.approx(total / (B * K), rel=1e-5)


def test_squared_error_is_that_of_standardised_values() -> None:
    outputs, targets = drawn()
    mean, std = torch.arange(K) * 10.0, torch.arange(1.0, K + 1)
    values = mean + std * targets
    found = squared_error(mean, std)(outputs, values, 0.1)
    # The values are large against their deviation: five digits are left.
    torch.testing.assert_close(found, ((outputs - targets) ** 2).mean(), rtol=1e-4, atol=0)
