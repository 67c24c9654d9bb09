"""Rare classes that count as much: weights, and epochs that draw them oftener."""

import pytest
import torch

from vitlab.data.order import Order
from vitlab.data.split import class_weights, image_weights, label_weights
from vitlab.errors import ConfigError

LABELS = torch.tensor([0] * 60 + [1] * 3 + [3] * 7)


def test_classes_weigh_the_same_and_images_one_on_average() -> None:
    weights = class_weights(LABELS, 4)
    counts = torch.tensor([60.0, 3, 0, 7])
    totals = (weights * counts)[[0, 1, 3]]
    torch.testing.assert_close(totals, torch.full((3,), 70 / 3))
    assert weights[2] == 0


def test_both_halves_of_a_label_weigh_the_same() -> None:
    marks = torch.zeros(20, 3, dtype=torch.bool)
    marks[:4, 0] = marks[:, 2] = True
    weights = label_weights(marks)
    torch.testing.assert_close(
        weights[0] * torch.tensor([16.0, 20, 0]), torch.tensor([10.0, 20, 0])
    )
    torch.testing.assert_close(weights[1] * torch.tensor([4.0, 0, 20]), torch.tensor([10.0, 0, 20]))


def test_an_epoch_draws_every_class_alike() -> None:
    order = Order(70, batch_size=7, repeats=1, seed=3, weights=image_weights(LABELS))
    for epoch in range(3):
        drawn = torch.cat([order.slots(epoch * 10 + step)[0] for step in range(10)])
        counts = LABELS[drawn].bincount(minlength=4)
        assert counts.sum() == 70
        assert (counts[[0, 1, 3]] - 70 / 3).abs().max() < 1
        # Each of the three rare images stands there 7 or 8 times, none is left to luck.
        assert set(drawn.bincount(minlength=70)[60:63].tolist()) <= {7, 8}


def test_every_frequent_image_has_its_turn() -> None:
    order = Order(70, batch_size=70, repeats=1, seed=0, weights=image_weights(LABELS))
    seen = {int(i) for step in range(30) for i in order.slots(step)[0]}
    assert seen == set(range(70))


def test_a_step_is_a_function_of_the_seed_and_its_number() -> None:
    first, second = (
        Order(70, batch_size=9, repeats=1, seed=5, weights=image_weights(LABELS)) for _ in range(2)
    )
    wanted = [first.slots(step)[0].tolist() for step in range(40)]
    assert second.slots(33)[0].tolist() == wanted[33]
    assert second.slots(2)[0].tolist() == wanted[2]
    assert wanted[0] != wanted[1]


def test_of_several_labels_the_rarest_counts() -> None:
    marks = torch.zeros(12, 2, dtype=torch.bool)
    marks[:9, 0] = True
    marks[0, 1] = True
    weights = image_weights(marks)
    # One image has the rare label, eight the frequent one alone, three have none.
    torch.testing.assert_close(weights, torch.tensor([4.0] + [0.5] * 8 + [4 / 3] * 3))


def test_values_have_no_classes() -> None:
    with pytest.raises(ConfigError, match="balance is for classes"):
        image_weights(torch.zeros(3, 1))
