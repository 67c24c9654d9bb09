"""Nearest neighbours: the plain vote."""

from collections import Counter

import numpy as np
import pytest
import torch
from torch import Tensor

from vitlab.errors import InputError
from vitlab.evaluation.neighbours import COUNTS, Neighbours

CLASSES, KNOWN, ASKED, WIDTH = 3, 29, 11, 5


def images(count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (count,), generator=draw)
    return torch.randn(count, WIDTH, generator=draw) + labels[:, None], labels


def plain_vote(known: Tensor, labels: Tensor, query: Tensor, count: int) -> int:
    """Most votes; of equal ones, the larger sum of cosines."""
    x, q = known.double().numpy(), query.double().numpy()
    cosine = x @ q / np.linalg.norm(x, axis=1) / np.linalg.norm(q)
    nearest = np.argsort(-cosine)[:count]
    votes = Counter(labels[nearest].tolist())
    return max(
        votes,
        key=lambda c: (votes[c], sum(cosine[i] for i in nearest if labels[i] == c)),
    )


@pytest.mark.parametrize("count", [1, 2, 3, 10, KNOWN])
def test_the_class_is_that_of_the_plain_vote(count: int) -> None:
    (known, labels), (asked, _) = images(KNOWN), images(ASKED, seed=1)
    found = Neighbours(known, labels, CLASSES).scores(asked, count).argmax(dim=1)
    assert found.tolist() == [plain_vote(known, labels, query, count) for query in asked]


@pytest.mark.parametrize("count", [1, 2, 5])
def test_left_out_never_sees_itself(count: int) -> None:
    known, labels = images(KNOWN)
    found = Neighbours(known, labels, CLASSES).left_out(count).argmax(dim=1)
    for i in range(KNOWN):
        rest = torch.arange(KNOWN) != i
        assert found[i] == plain_vote(known[rest], labels[rest], known[i], count)


def test_the_count_is_the_best_on_images_left_out() -> None:
    known, labels = images(97)
    fewest = min(Counter(labels.tolist()).values())
    right = {}
    for count in (count for count in COUNTS if count < fewest):
        answers = []
        for i in range(len(labels)):
            rest = torch.arange(len(labels)) != i
            answers.append(plain_vote(known[rest], labels[rest], known[i], count) == labels[i])
        right[count] = sum(answers)
    best = max(right.values())
    expected = max(count for count, number in right.items() if number == best)
    assert Neighbours(known, labels, CLASSES).best_count() == expected
    assert len(right) > 2


def test_one_image_a_class_has_one_neighbour() -> None:
    known = torch.eye(CLASSES, WIDTH)
    neighbours = Neighbours(known, torch.arange(CLASSES), CLASSES)
    assert neighbours.best_count() == 1
    assert neighbours.scores(known, 1).argmax(dim=1).tolist() == [0, 1, 2]


def test_more_neighbours_than_images() -> None:
    known, labels = images(KNOWN)
    with pytest.raises(InputError, match="30 neighbours of 29 images"):
        Neighbours(known, labels, CLASSES).scores(known, 30)
