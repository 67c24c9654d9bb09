"""Counts and ratios against their definitions, written out by hand or in plain Python."""

import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from vitlab.errors import InputError
from vitlab.evaluation.metrics import (
    Tally,
    confusion_matrix,
    mean_over_classes,
    per_class,
    ranks,
    wilson,
)

# Different primes: no transposed matrix keeps its shape unnoticed.
IMAGES, CLASSES = 103, 7


def random_answers(images: int = IMAGES, classes: int = CLASSES) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(images, classes, generator=generator)
    return logits, torch.randint(classes, (images,), generator=generator)


def batches(logits: Tensor, labels: Tensor, size: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    index = torch.arange(len(labels))
    yield from zip(logits.split(size), labels.split(size), index.split(size), strict=True)


def counted(logits: Tensor, labels: Tensor, size: int) -> Tally:
    tally = Tally(logits.shape[1])
    for batch in batches(logits, labels, size):
        tally.add(*batch)
    return tally


def test_a_small_case_by_hand() -> None:
    logits = torch.tensor([[3.0, 1, 0], [0, 2, 1], [1, 0, 2], [0, 5, 1]])
    tally = counted(logits, torch.tensor([0, 1, 1, 2]), 4)
    assert tally.confusion.tolist() == [[1, 0, 0], [0, 1, 1], [0, 1, 0]]
    assert (tally.images, tally.correct, tally.accuracy) == (4, 2, 0.5)
    assert (tally.top, tally.top5) == (3, 1.0)  # of three classes, all are among the top five
    losses = [
        math.log(sum(map(math.exp, row))) - row[label]
        for row, label in zip(logits.tolist(), [0, 1, 1, 2], strict=True)
    ]
    assert tally.loss == pytest.approx(sum(losses) / 4, rel=1e-12)


@pytest.mark.parametrize("size", [1, 10, 103, 200])
def test_every_image_counts_once_whatever_the_batches(size: int) -> None:
    logits, labels = random_answers()
    tally = counted(logits, labels, size)
    rows = list(zip(logits.tolist(), labels.tolist(), strict=True))
    right = sum(row.index(max(row)) == label for row, label in rows)
    among = sum(label in sorted(range(CLASSES), key=lambda c: -row[c])[:5] for row, label in rows)
    assert tally.images == IMAGES
    assert tally.accuracy == right / IMAGES
    assert tally.top5 == among / IMAGES
    assert int(tally.confusion.sum()) == IMAGES


def test_an_image_that_comes_again_is_not_counted_again() -> None:
    logits, labels = random_answers()
    once, padded = counted(logits, labels, 10), Tally(CLASSES)
    for start in range(0, IMAGES, 10):  # the last batch is filled up with the first images
        rows = torch.arange(start, start + 10) % IMAGES
        padded.add(logits[rows], labels[rows], rows)
    twice = torch.zeros(2, dtype=torch.long)
    padded.add(logits[twice], labels[twice], twice)
    assert padded.images == IMAGES
    assert torch.equal(padded.confusion, once.confusion)
    assert padded.loss == pytest.approx(once.loss, rel=1e-12)
    assert padded.top5 == once.top5


def test_of_equal_logits_the_first_class_wins() -> None:
    tally = counted(torch.zeros(IMAGES, 11), torch.arange(IMAGES) % 11, 7)
    assert tally.accuracy == sum(i % 11 == 0 for i in range(IMAGES)) / IMAGES
    assert tally.top5 == sum(i % 11 < 5 for i in range(IMAGES)) / IMAGES
    assert ranks(torch.zeros(3, 11), torch.tensor([0, 4, 10])).tolist() == [0, 4, 10]


def test_diverged_logits_are_refused() -> None:
    logits, labels = random_answers()
    logits[5, 2], logits[6, 1] = float("nan"), float("inf")
    with pytest.raises(InputError, match=r"2 of 103 images have logits that are not finite"):
        counted(logits, labels, 200)


def test_nothing_counted_has_no_accuracy() -> None:
    with pytest.raises(InputError, match="no image was counted"):
        _ = Tally(3).accuracy


def test_rows_are_true_and_columns_predicted() -> None:
    found = confusion_matrix(torch.tensor([1, 1, 2, 0]), torch.tensor([0, 0, 2, 2]), 3)
    assert found.tolist() == [[0, 2, 0], [0, 0, 0], [1, 0, 1]]


def test_per_class_by_hand() -> None:
    confusion = torch.tensor([[8, 2, 0, 0], [1, 3, 0, 0], [0, 0, 0, 0], [5, 0, 0, 0]])
    a, b, c, d = per_class(confusion, ["a", "b", "c", "d"])
    assert (a.precision, a.recall, a.support) == (8 / 14, 8 / 10, 10)
    assert a.f1 == pytest.approx(2 * (8 / 14) * (8 / 10) / (8 / 14 + 8 / 10))
    assert (b.precision, b.recall, b.f1, b.support) == (3 / 5, 3 / 4, 6 / 9, 4)
    assert (c.precision, c.recall, c.f1, c.support) == (None, None, None, 0)
    assert (d.precision, d.recall, d.f1, d.support) == (None, 0.0, 0.0, 5)


def test_the_mean_over_classes_leaves_out_the_undefined() -> None:
    assert mean_over_classes([0.5, None, 1.0]) == 0.75
    assert mean_over_classes([None]) is None


@pytest.mark.parametrize(
    ("successes", "total", "low", "high"),
    [
        (81, 263, 0.2553, 0.3662),  # Newcombe 1998, table I
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (29, 29, 0.8830, 1.0),
        (0, 0, 0.0, 1.0),
    ],
)
def test_wilson(successes: int, total: int, low: float, high: float) -> None:
    found = wilson(successes, total)
    assert found == pytest.approx((low, high), abs=5e-5)
    if total:
        assert found[0] <= successes / total <= found[1]


def test_wilson_solves_its_equation() -> None:
    z, n, p = 1.959963984540054, 97, 71 / 97
    for bound in wilson(71, 97):
        assert abs(p - bound) == pytest.approx(z * math.sqrt(bound * (1 - bound) / n), rel=1e-9)
