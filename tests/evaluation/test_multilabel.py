"""Figures of labels against plain loops in float64."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from vitlab.errors import InputError
from vitlab.evaluation.classification import Outcome
from vitlab.evaluation.metrics import bootstrap_interval
from vitlab.evaluation.multilabel import (
    average_precisions,
    evaluate_labels,
    mean_average_precision,
    worst_labels,
)

B, K = 101, 7


def made(ties: bool = False) -> Outcome:
    draw = torch.Generator().manual_seed(3)
    labels = torch.rand(B, K, generator=draw) < torch.linspace(0.02, 0.6, K)
    logits = torch.randn(B, K, generator=draw) + 1.5 * labels - 0.7
    labels[:, 4] = False
    return Outcome(
        logits=(logits * 2).round() if ties else logits, labels=labels, index=torch.arange(B)
    )


def plain_average_precision(scores: NDArray[np.float64], truth: NDArray[np.bool_]) -> float:
    """For every image that has the label: of those scored as high or higher, the part that has."""
    parts = []
    for score, has in zip(scores, truth, strict=True):
        if has:
            above = scores >= score
            parts.append((truth & above).sum() / above.sum())
    return float(np.mean(parts))


@pytest.mark.parametrize("ties", [True, False])
def test_average_precision_is_the_definition(ties: bool) -> None:
    outcome = made(ties)
    scores, truth = outcome.logits.double().numpy(), outcome.labels.numpy()
    found = average_precisions(scores, truth)
    assert found[4] is None
    for i in (0, 1, 2, 3, 5, 6):
        assert found[i] == pytest.approx(plain_average_precision(scores[:, i], truth[:, i]))
    defined = [value for value in found if value is not None]
    assert mean_average_precision(scores, truth) == pytest.approx(np.mean(defined))


def test_a_perfect_order_and_a_constant_one() -> None:
    truth = np.array([[True], [False], [True], [False]])
    assert average_precisions(np.array([[4.0], [1], [3], [2]]), truth) == [1.0]
    assert average_precisions(np.zeros((4, 1)), truth) == [0.5]
    assert mean_average_precision(np.zeros((4, 1)), np.zeros((4, 1), np.bool_)) == 0.0


def test_counts_are_those_of_a_loop() -> None:
    outcome = made()
    found = evaluate_labels(outcome, [f"l{i}" for i in range(K)], threshold=0.3)
    given = outcome.logits.double().sigmoid() >= 0.3
    f1s = []
    for i, item in enumerate(found.classes):
        pairs = list(zip(given[:, i].tolist(), outcome.labels[:, i].tolist(), strict=True))
        right = pairs.count((True, True))
        called, support = right + pairs.count((True, False)), right + pairs.count((False, True))
        assert item.support == support
        assert item.precision == (pytest.approx(right / called) if called else None)
        assert item.recall == (pytest.approx(right / support) if support else None)
        if support:
            f1s.append(2 * right / (called + support))
    assert found.macro_f1 == pytest.approx(np.mean(f1s))
    both, either = (given & outcome.labels).sum(), given.sum() + outcome.labels.sum()
    assert found.micro_f1 == pytest.approx(float(2 * both / either))
    exact = sum(torch.equal(a, b) for a, b in zip(given, outcome.labels, strict=True))
    assert found.exact == pytest.approx(exact / B)
    assert found.interval[0] < found.map < found.interval[1]
    assert found.to_dict()["classes"][4]["average_precision"] is None


def test_the_worst_rows_are_wrong_and_in_order() -> None:
    outcome = made()
    rows = worst_labels(outcome, 10)
    wrong = (outcome.logits >= 0) != outcome.labels
    assert all(wrong[row].any() for row in rows)
    sureness = (outcome.logits.abs() * wrong).amax(dim=1)[rows].tolist()
    assert sureness == sorted(sureness, reverse=True)


def test_labels_must_fit() -> None:
    with pytest.raises(InputError, match="3 labels for logits of 7"):
        evaluate_labels(made(), ["a", "b", "c"])


def test_the_interval_of_a_mean_is_that_of_theory() -> None:
    values = np.random.default_rng(0).normal(5, 2, 400)
    low, high = bootstrap_interval(lambda rows: float(values[rows].mean()), 400)
    half = 1.96 * values.std() / 20
    # A thousand draws give the ends to a tenth of the half-width.
    assert low == pytest.approx(values.mean() - half, abs=half / 5)
    assert high == pytest.approx(values.mean() + half, abs=half / 5)
