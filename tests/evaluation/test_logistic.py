"""Logistic regression: SciPy's optimum, and a strength chosen on folds left out."""

import importlib

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitlab.evaluation.logistic import STRENGTHS, best_strength, fit_logistic

CLASSES, WIDTH = 3, 5
Array = NDArray[np.float64]


def images(count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % CLASSES
    centres = torch.randn(CLASSES, WIDTH, generator=draw)
    return 7 + 3 * (centres[labels] + torch.randn(count, WIDTH, generator=draw)), labels


def standardised(train: Tensor, other: Tensor) -> Array:
    known = train.double().numpy()
    scaled: Array = (other.double().numpy() - known.mean(axis=0)) / (known.std(axis=0) + 1e-5)
    return scaled


def cross_entropy(logits: Array, labels: Array) -> float:
    top = logits.max(axis=1, keepdims=True)
    normaliser = np.log(np.exp(logits - top).sum(axis=1)) + top[:, 0]
    return float((normaliser - logits[np.arange(len(labels)), labels]).sum())


def plain_fit(x: Array, labels: Array, l2: float) -> tuple[Array, Array]:
    """Weights and bias by SciPy, by another method."""
    optimize = importlib.import_module("scipy.optimize")

    def loss(flat: Array) -> tuple[float, Array]:
        weights, bias = flat[:-CLASSES].reshape(WIDTH, CLASSES), flat[-CLASSES:]
        logits = x @ weights + bias
        wrong = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True) - np.eye(CLASSES)[labels]
        slope = np.concatenate([(x.T @ wrong + l2 * weights).ravel(), wrong.sum(axis=0)])
        return cross_entropy(logits, labels) + l2 / 2 * np.square(weights).sum(), slope

    start = np.zeros((WIDTH + 1) * CLASSES)
    found = optimize.minimize(loss, start, jac=True, method="BFGS", options={"gtol": 1e-7}).x
    return found[:-CLASSES].reshape(WIDTH, CLASSES), found[-CLASSES:]


@pytest.mark.parametrize("l2", [0.1, 1.0, 100.0])
def test_the_fit_is_the_plain_optimum(l2: float) -> None:
    features, labels = images(23)
    others, _ = images(7, seed=1)
    weights, bias = plain_fit(standardised(features, features), labels.numpy(), l2)
    expected = standardised(features, others) @ weights + bias
    found = fit_logistic(features, labels, CLASSES, l2=l2).scores(others).numpy()
    # A constant added to all classes changes nothing; both stop at gradients of about 1e-6.
    centred = found - found.mean(axis=1, keepdims=True)
    np.testing.assert_allclose(
        centred, expected - expected.mean(axis=1, keepdims=True), atol=1e-4, rtol=1e-4
    )


def test_the_gradient_at_the_fit_is_zero() -> None:
    features, labels = images(23)
    fit = fit_logistic(features, labels, CLASSES, l2=1.0)
    x = torch.from_numpy(standardised(features, features))
    wrong = fit.scores(features).softmax(dim=1) - torch.eye(CLASSES, dtype=x.dtype)[labels]
    gradient = x.mT @ wrong + fit.weights[:-1]
    torch.testing.assert_close(gradient, torch.zeros_like(gradient), atol=1e-5, rtol=0)
    torch.testing.assert_close(wrong.sum(dim=0), torch.zeros(CLASSES).double(), atol=1e-5, rtol=0)


def test_a_warm_start_ends_at_the_same_fit() -> None:
    features, labels = images(23)
    strong = fit_logistic(features, labels, CLASSES, l2=1000.0)
    warm = fit_logistic(features, labels, CLASSES, l2=1.0, start=strong)
    cold = fit_logistic(features, labels, CLASSES, l2=1.0)
    torch.testing.assert_close(warm.weights, cold.weights, atol=1e-5, rtol=1e-5)
    assert strong.weights.abs().max() < cold.weights.abs().max()


@pytest.mark.parametrize("count", [2, 7])
def test_the_strength_is_the_best_on_folds_left_out(count: int) -> None:
    features, labels = images(count * CLASSES)
    folds = min(5, count)
    losses = dict.fromkeys(STRENGTHS, 0.0)
    for l2 in STRENGTHS:
        for fold in range(folds):
            held = torch.tensor([i // CLASSES % folds == fold for i in range(len(labels))])
            fit = fit_logistic(features[~held], labels[~held], CLASSES, l2=l2)
            scores = fit.scores(features[held]).numpy()
            losses[l2] += cross_entropy(scores, labels[held].numpy())
    expected = min(losses, key=losses.__getitem__)
    assert best_strength(features, labels, CLASSES) == expected
    grouped = torch.argsort(labels, stable=True)  # images class by class, as draws come
    assert best_strength(features[grouped], labels[grouped], CLASSES) == expected
