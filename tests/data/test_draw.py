"""A few images of each class."""

import pytest
import torch

from vitlab.data.images import ArraySet
from vitlab.data.split import draw_per_class
from vitlab.errors import DataError
from vitlab.jobs.training_run import divided
from vitlab.training.config import TrainConfig


def images() -> ArraySet:
    labels = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 0])
    pixels = torch.arange(11, dtype=torch.uint8)[:, None, None, None].expand(11, 3, 5, 7)
    return ArraySet(images=pixels, labels=labels)


def test_each_class_gets_its_number_and_no_image_comes_twice() -> None:
    found = draw_per_class(images(), 2, seed=0)
    assert found.labels.bincount().tolist() == [2, 2, 2]
    places = found.images[:, 0, 0, 0].tolist()
    assert places == sorted(set(places))
    assert images().labels[places].tolist() == found.labels.tolist()


def test_the_seed_decides() -> None:
    draws = {
        tuple(draw_per_class(images(), 2, seed=seed).images[:, 0, 0, 0].tolist())
        for seed in (0, 0, 1, 2, 3)
    }
    assert 1 < len(draws) <= 4


def test_too_few_images_are_told() -> None:
    with pytest.raises(DataError, match="images_per_class 4; class 1 has 3 images"):
        draw_per_class(images(), 4, seed=0)


def test_advice_on_holding_out_is_for_that_alone() -> None:
    with pytest.raises(DataError, match=r"class 1 has 3 images$"):
        divided(images(), TrainConfig(images_per_class=4))
    lone = images().subset(torch.tensor([0, 1]))
    with pytest.raises(DataError, match=r"--set hold_out=0 holds none out$"):
        divided(lone, TrainConfig(hold_out=0.5))
