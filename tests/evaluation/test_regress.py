"""Figures of values against scipy and the definitions."""

import numpy as np
import pytest
import scipy.stats
import torch

from vitlab.errors import InputError
from vitlab.evaluation.classification import Outcome
from vitlab.evaluation.regression import coefficient, evaluate_values, ranks, spearman, worst_values

B = 97


def made() -> Outcome:
    draw = torch.Generator().manual_seed(1)
    truth = torch.randn(B, 2, generator=draw) * torch.tensor([3.0, 100.0]) + 50
    noise = torch.randn(B, 2, generator=draw) * torch.tensor([1.0, 80.0])
    return Outcome(logits=truth + noise, labels=truth, index=torch.arange(B))


def test_figures_are_the_definitions() -> None:
    outcome = made()
    found = evaluate_values(outcome, ["width", "depth"])
    for i, item in enumerate(found.values):
        told, truth = (part[:, i].double().numpy() for part in (outcome.logits, outcome.labels))
        pairs = zip(told, truth, strict=True)
        assert item.mae == pytest.approx(np.mean([abs(a - b) for a, b in pairs]))
        assert item.rmse == pytest.approx(np.mean((told - truth) ** 2) ** 0.5)
        assert item.r2 == pytest.approx(1 - np.mean((told - truth) ** 2) / np.var(truth))
        assert item.spearman == pytest.approx(scipy.stats.spearmanr(told, truth).statistic)
        assert item.mean_mae == pytest.approx(np.abs(truth - truth.mean()).mean())
        assert item.mae_interval[0] < item.mae < item.mae_interval[1]
        assert item.rmse_interval[0] < item.rmse < item.rmse_interval[1]
        assert item.r2_interval is not None
        assert item.r2_interval[0] < item.r2 < item.r2_interval[1]
    assert found.values[0].r2 is not None
    assert found.r2 == pytest.approx((found.values[0].r2 + (found.values[1].r2 or 0)) / 2)
    assert set(found.to_dict()) == {"task", "images", "r2", "mae", "values"}


def test_ranks_share_what_equal_values_have() -> None:
    values = np.array([3.0, 1, 3, 2, 3, 1])
    assert ranks(values).tolist() == scipy.stats.rankdata(values).tolist()
    other = np.array([1.0, 1, 2, 2, 3, 3])
    wanted = scipy.stats.spearmanr(values, other).statistic
    assert spearman(values, other) == pytest.approx(wanted)


def test_what_does_not_vary_is_not_told() -> None:
    flat, other = np.ones(5), np.arange(5.0)
    assert coefficient(other, flat) is None
    assert spearman(flat, other) is None
    assert coefficient(np.full(5, other.mean()), other) == pytest.approx(0.0)


def test_the_worst_are_the_farthest_off_by_their_deviation() -> None:
    outcome = made()
    truth = outcome.labels.double()
    error = ((outcome.logits.double() - truth) / truth.std(dim=0, correction=0)).abs().amax(dim=1)
    assert worst_values(outcome, 5) == error.argsort(descending=True)[:5].tolist()


def test_names_must_fit() -> None:
    with pytest.raises(InputError, match="1 names for 2 values"):
        evaluate_values(made(), ["width"])
