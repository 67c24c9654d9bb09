"""Least squares in closed form: the plain solution, and the plain way to leave one out."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitlab.evaluation.ridge import BIAS, STRENGTHS, LeastSquares

CLASSES = 3
SHAPES = [(11, 29), (31, 7), (8, 7)]
"""Images and width: fewer, more, and as many as there are weights."""
Array = NDArray[np.float64]


def images(count: int, width: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % CLASSES
    centres = torch.randn(CLASSES, width, generator=draw)
    features = 3 + 2 * (centres[labels] + torch.randn(count, width, generator=draw))
    return features, labels


def prepared(train: Tensor, other: Tensor) -> Array:
    """Standardised by the training images, with the constant feature."""
    known, asked = train.double().numpy(), other.double().numpy()
    scaled = (asked - known.mean(axis=0)) / (known.std(axis=0) + 1e-5)
    return np.concatenate([scaled, np.full((len(asked), 1), BIAS)], axis=1)


def targets(labels: Tensor) -> Array:
    return 2.0 * np.eye(CLASSES)[labels.numpy()] - 1.0


def plain_weights(x: Array, y: Array, l2: float) -> Array:
    """The regularised problem as an ordinary one of more rows, for NumPy's solver."""
    width = x.shape[1]
    rows = np.concatenate([x, np.sqrt(l2) * np.eye(width)])
    solution: Array = np.linalg.lstsq(rows, np.concatenate([y, np.zeros((width, CLASSES))]))[0]
    return solution


@pytest.mark.parametrize("l2", [2.0**-6, 1.0, 2.0**10, 2.0**20])
@pytest.mark.parametrize(("count", "width"), SHAPES)
def test_scores_are_those_of_the_plain_solution(count: int, width: int, l2: float) -> None:
    features, labels = images(count, width)
    others, _ = images(5, width, seed=1)
    weights = plain_weights(prepared(features, features), targets(labels), l2)
    found = LeastSquares(features, labels, CLASSES).scores(others, l2)
    # The Gram matrix squares a condition of up to 1e5.
    np.testing.assert_allclose(found.numpy(), prepared(features, others) @ weights, atol=1e-7)


@pytest.mark.parametrize("l2", [2.0**-6, 1.0, 2.0**10])
@pytest.mark.parametrize(("count", "width"), SHAPES)
def test_left_out_is_a_fit_without_the_image(count: int, width: int, l2: float) -> None:
    features, labels = images(count, width)
    x, y = prepared(features, features), targets(labels)
    expected = np.stack(
        [
            x[i] @ plain_weights(np.delete(x, i, axis=0), np.delete(y, i, axis=0), l2)
            for i in range(count)
        ]
    )
    found = LeastSquares(features, labels, CLASSES).left_out(l2)
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-6)


@pytest.mark.parametrize(("count", "width"), SHAPES)
def test_the_strength_is_the_best_on_images_left_out(count: int, width: int) -> None:
    features, labels = images(count, width)
    x, y = prepared(features, features), targets(labels)
    errors = []
    for l2 in STRENGTHS:
        misses = [
            x[i] @ plain_weights(np.delete(x, i, axis=0), np.delete(y, i, axis=0), l2) - y[i]
            for i in range(count)
        ]
        errors.append(np.square(misses).mean())
    assert LeastSquares(features, labels, CLASSES).best_strength() == STRENGTHS[np.argmin(errors)]


def test_noise_is_regularised_more_than_signal() -> None:
    features, labels = images(30, 7)
    draw = torch.Generator().manual_seed(2)
    noise = torch.randn(features.shape, generator=draw)
    clear = LeastSquares(100 * features + noise, labels, CLASSES).best_strength()
    assert clear < LeastSquares(noise, labels, CLASSES).best_strength()


def test_a_feature_that_never_changes_does_no_harm() -> None:
    features, labels = images(11, 7)
    features[:, 3] = 5.0
    assert LeastSquares(features, labels, CLASSES).scores(features, 1.0).isfinite().all()
