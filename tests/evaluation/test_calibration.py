"""Calibration error by hand, and the temperature that a known one takes back."""

import pytest
import torch
from torch.nn import functional as F

from vitlab.errors import InputError
from vitlab.evaluation.calibration import (
    BINS,
    LIMITS,
    fit_temperature,
    helpful_temperature,
    reliability,
)


def sampled(images: int, classes: int, factor: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Labels drawn from the softmax of logits, which are then multiplied."""
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(images, classes, generator=generator, dtype=torch.float64)
    labels = torch.multinomial(logits.softmax(dim=1), 1, generator=generator)[:, 0]
    return factor * logits, labels


def test_by_hand() -> None:
    confidence = torch.tensor([0.95, 0.97, 0.99, 0.55, 0.45])
    correct = torch.tensor([True, False, True, False, True])
    found = reliability(confidence, correct, bins=10)
    counts = [item.count for item in found.bins]
    assert counts == [0, 0, 0, 0, 1, 1, 0, 0, 0, 3]
    last = found.bins[-1]
    assert last.low == pytest.approx(0.9)
    assert last.high == 1.0
    assert last.accuracy == pytest.approx(2 / 3)
    assert last.confidence == pytest.approx(0.97)
    by_hand = (3 * abs(2 / 3 - 0.97) + abs(0 - 0.55) + abs(1 - 0.45)) / 5
    assert found.ece == pytest.approx(by_hand)
    assert found.bins[0].accuracy is None
    assert found.to_dict()["ece"] == found.ece


def test_bins_include_their_upper_end() -> None:
    found = reliability(torch.tensor([0.5, 0.25, 1.0]), torch.tensor([True] * 3), bins=4)
    assert [item.count for item in found.bins] == [1, 1, 0, 1]


def test_there_are_fifteen_bins() -> None:
    assert len(reliability(torch.tensor([0.3]), torch.tensor([True])).bins) == BINS == 15


def test_a_perfectly_calibrated_model_has_no_error() -> None:
    logits, labels = sampled(200_000, 5, factor=1.0)
    confidence, predicted = logits.softmax(dim=1).max(dim=1)
    # Noise of 200 000 draws over 15 bins: about 0.001.
    assert reliability(confidence, predicted == labels).ece < 0.004


def test_always_wrong_and_sure_has_the_whole_error() -> None:
    found = reliability(torch.ones(7), torch.zeros(7, dtype=torch.bool))
    assert found.ece == 1.0


@pytest.mark.parametrize("factor", [0.4, 1.0, 2.5])
def test_the_temperature_recovers_a_known_factor(factor: float) -> None:
    logits, labels = sampled(20_000, 5, factor)
    found = fit_temperature(logits, labels)
    assert found.images == 20_000
    assert found.value == pytest.approx(factor, rel=0.03)  # as exact as 20 000 draws tell


@pytest.mark.parametrize("factor", [0.4, 3.0])
def test_no_other_temperature_has_less_loss(factor: float) -> None:
    logits, labels = sampled(500, 5, factor)
    best = fit_temperature(logits, labels).value

    def loss(temperature: float) -> float:
        return float(F.cross_entropy(logits / temperature, labels))

    assert loss(best) < min(loss(best * 1.001), loss(best / 1.001), loss(1.0))


def test_calibration_error_falls() -> None:
    logits, labels = sampled(20_000, 5, 3.0)
    held_out, rest = slice(0, 10_000), slice(10_000, None)
    value = fit_temperature(logits[held_out], labels[held_out]).value

    def error(temperature: float) -> float:
        confidence, predicted = (logits[rest] / temperature).softmax(dim=1).max(dim=1)
        return reliability(confidence, predicted == labels[rest]).ece

    assert error(value) < 0.02 < 0.1 < error(1.0)


def test_hopeless_cases_stay_within_limits() -> None:
    sure = torch.eye(3)
    assert fit_temperature(sure, torch.tensor([0, 1, 2])).value == pytest.approx(LIMITS[0])
    assert fit_temperature(sure, torch.tensor([1, 2, 0])).value == pytest.approx(LIMITS[1])


def test_equal_logits_leave_the_temperature_within_limits() -> None:
    value = fit_temperature(torch.zeros(4, 3), torch.tensor([0, 1, 2, 0])).value
    assert LIMITS[0] <= value <= LIMITS[1]


def test_nothing_to_fit_on() -> None:
    with pytest.raises(InputError, match="no image to fit"):
        fit_temperature(torch.zeros(0, 3), torch.zeros(0, dtype=torch.long))


@pytest.mark.parametrize("factor", [0.4, 3.0])
def test_a_temperature_that_helps_is_kept(factor: float) -> None:
    logits, labels = sampled(500, 5, factor)
    assert helpful_temperature(logits, labels) == fit_temperature(logits, labels)


def test_a_temperature_that_does_not_help_is_none() -> None:
    calibrated = sampled(500, 5, 1.0)
    assert helpful_temperature(*calibrated) is None
    logits = 4 * torch.eye(3)[torch.arange(100) % 3]
    assert helpful_temperature(logits, torch.arange(100) % 3) is None  # at a limit
    assert helpful_temperature(*(part[:9] for part in sampled(500, 5, 3.0))) is None  # few images
