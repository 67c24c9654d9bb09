"""Few-shot evaluation: fair draws, honest choices, right intervals."""

import importlib

import pytest
import torch
from torch import Tensor

from vitlab.errors import DataError, InputError, UnknownName
from vitlab.evaluation import logistic, ridge
from vitlab.evaluation.fewshot import (
    METHODS,
    Labelled,
    Score,
    check_request,
    draw_shots,
    mean_interval,
    student,
)

NAMES, WIDTH = ("a", "b", "c"), 7
LABELS = torch.tensor([0, 1, 2, 2, 0, 1, 2, 0, 1, 0, 1, 2, 0])


def draw(shots: int, seed: int = 0, **options: object) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return draw_shots(LABELS, NAMES, shots, generator=generator, **options)


def test_draws_are_of_their_class_and_without_repetition() -> None:
    found = draw(4)
    assert found.shape == (3, 4)
    assert LABELS[found].tolist() == [[label] * 4 for label in range(3)]
    assert len(set(found.flatten().tolist())) == 12


def test_fewer_shots_are_the_first_of_more() -> None:
    assert torch.equal(draw(2), draw(4)[:, :2])
    assert torch.equal(draw(4), draw(4))
    assert not torch.equal(draw(4), draw(4, seed=1))


def test_every_image_is_drawn_as_often() -> None:
    counts = torch.zeros(len(LABELS))
    for seed in range(600):
        counts[draw(1, seed).flatten()] += 1
    for label in range(3):
        members = torch.eq(LABELS, label).nonzero()[:, 0]
        expected = 600 / len(members)
        # Five deviations of a binomial: 120 or 150 expected, at most 10.6 each.
        assert (counts[members] - expected).abs().max() < 53


def test_unreadable_images_are_replaced_and_others_stay() -> None:
    plain = draw(2)
    gone = int(plain[1, 0])
    found = draw(2, without={gone})
    assert torch.equal(found[[0, 2]], plain[[0, 2]])
    assert found[1, 0] == plain[1, 1]
    assert gone not in found


def test_too_few_images() -> None:
    with pytest.raises(DataError, match=r"class 'b' has 4 readable .* 5 shots; valid: at most 4"):
        draw(5)
    with pytest.raises(DataError, match="class 'c' has 3 readable"):
        draw(4, without={2})


def sets(shots: int, *, noise: float = 1.0, seed: int = 0) -> tuple[Labelled, Labelled]:
    generator = torch.Generator().manual_seed(seed)
    centres = 3 * torch.randn(3, WIDTH, generator=generator)

    def make(count: int) -> Labelled:
        labels = torch.arange(3).repeat_interleave(count)
        features = centres[labels] + noise * torch.randn(3 * count, WIDTH, generator=generator)
        return Labelled(features=features, labels=labels)

    return make(shots), make(101)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("shots", [1, 2, 11])
def test_every_method_learns_what_is_easy(method: str, shots: int) -> None:
    train, test = sets(shots, noise=0.1)
    assert METHODS[method](train, 3, test).accuracy == 1.0


@pytest.mark.parametrize("method", METHODS)
def test_accuracy_is_counted_by_hand(method: str) -> None:
    train, test = sets(3, noise=0.1)
    wrong = test.labels.clone()
    wrong[:17] = (wrong[:17] + 1) % 3
    found = METHODS[method](train, 3, Labelled(features=test.features, labels=wrong))
    assert found.accuracy == pytest.approx(1 - 17 / 303, abs=1e-12)


@pytest.mark.parametrize("method", METHODS)
def test_test_images_choose_nothing(method: str) -> None:
    train, test = sets(5, noise=5.0)
    other = Labelled(features=100 * test.features.flip(0) + 7, labels=test.labels.flip(0))
    settings = {METHODS[method](train, 3, each).setting for each in (test, other)}
    assert len(settings) == 1


def test_one_shot_takes_the_stated_default() -> None:
    train, test = sets(1)
    assert METHODS["least-squares"](train, 3, test).setting == ridge.DEFAULT_L2 == 1024
    assert METHODS["logistic"](train, 3, test).setting == logistic.DEFAULT_L2
    assert METHODS["knn"](train, 3, test).setting == 1


def test_student_is_scipys() -> None:
    t = importlib.import_module("scipy.stats").t
    for freedom in (*range(1, 40), 50, 100, 1000):
        assert student(freedom) == pytest.approx(t.ppf(0.975, freedom), abs=1e-5)


def test_the_interval_is_scipys() -> None:
    stats = importlib.import_module("scipy.stats")
    values = [0.91, 0.93, 0.9, 0.95, 0.94, 0.92, 0.93]
    low, high = stats.t.interval(
        0.95, len(values) - 1, loc=sum(values) / 7, scale=stats.sem(values)
    )
    found = mean_interval(values)
    assert found == pytest.approx((low, high), abs=1e-6)
    score = Score(method="knn", shots=1, accuracies=tuple(values), settings=(1.0,) * 7)
    assert score.interval == found
    assert score.mean == pytest.approx(sum(values) / 7)


def test_intervals_at_the_ends() -> None:
    assert mean_interval([0.9]) is None
    assert mean_interval([1.0, 1.0, 1.0]) == (1.0, 1.0)
    low, high = mean_interval([0.0, 1.0]) or (None, None)
    assert (low, high) == (0.0, 1.0)


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (([], 1, []), r"shots \[\]; valid: different numbers from 1"),
        (([0, 5], 1, []), r"shots \[0, 5\]"),
        (([5, 5], 1, []), r"shots \[5, 5\]"),
        (([5], 0, []), "draws 0; valid: at least 1"),
        (([5], 1, ["knm"]), "unknown method 'knm'; did you mean knn"),
    ],
)
def test_requests_that_mean_nothing(
    request_: tuple[list[int], int, list[str]], message: str
) -> None:
    with pytest.raises((InputError, UnknownName), match=message):
        check_request(*request_)
