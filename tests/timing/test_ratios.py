"""Exact statistics of paired times."""

import random

import pytest

from vitlab.timing.referee import (
    Estimate,
    Round,
    Turn,
    compare,
    geometric_mean,
    paired_ratios,
    quantile,
)


def turns(**seconds: float) -> Round:
    return {name: Turn(seconds=value, asleep=0.0) for name, value in seconds.items()}


def test_ratios_pair_within_a_round() -> None:
    rounds = [turns(ours=1.0, theirs=2.0), turns(ours=4.0, theirs=2.0)]
    assert paired_ratios(rounds, "ours", "theirs") == [2.0, 0.5]


def test_geometric_mean() -> None:
    assert geometric_mean([2.0, 8.0]) == pytest.approx(4.0, rel=1e-15)
    assert geometric_mean([3.0]) == pytest.approx(3.0, rel=1e-15)


@pytest.mark.parametrize(
    ("share", "value"), [(0.0, 1.0), (0.25, 2.0), (0.5, 3.0), (0.625, 5.0), (1.0, 15.0)]
)
def test_quantile(share: float, value: float) -> None:
    assert quantile([1.0, 2.0, 3.0, 7.0, 15.0], share) == value


def test_equal_rounds_leave_no_doubt() -> None:
    found = compare([[2.0] * 7, [8.0] * 6], resamples=50)
    assert (found.ratio, found.low, found.high) == pytest.approx((4.0, 4.0, 4.0), rel=1e-15)
    assert found.verdict == "faster"


@pytest.mark.parametrize(("rounds", "verdict"), [(5, "no difference shown"), (6, "faster")])
def test_few_rounds_prove_nothing(rounds: int, verdict: str) -> None:
    # Six fair coins agree once in 32: the first number of rounds that reaches 95 %.
    found = compare([[2.0] * 9, [2.0] * rounds], resamples=50)
    assert found.ratio == pytest.approx(2.0)
    assert found.verdict == verdict


def test_one_disturbed_round_does_not_move_the_ratio() -> None:
    assert compare([[1.5] * 6 + [40.0]], resamples=50).ratio == pytest.approx(1.5)


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (1.01, 1.2, "faster"),
        (0.8, 0.99, "slower"),
        (0.9, 1.1, "no difference shown"),
        (1.0, 1.1, "no difference shown"),
    ],
)
def test_verdict(low: float, high: float, verdict: str) -> None:
    assert Estimate(ratio=1.0, low=low, high=high).verdict == verdict


def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    noise = random.Random(0)
    covered = 0
    for trial in range(100):
        ratios = [[1.1 * noise.lognormvariate(0, 0.1) for _ in range(15)] for _ in range(4)]
        found = compare(ratios, resamples=200, seed=trial)
        covered += found.low <= 1.1 <= found.high
    # Binomial with 95 % over 100 trials: below 85 about once in 100,000.
    assert covered >= 85
