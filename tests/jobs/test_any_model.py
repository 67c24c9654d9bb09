"""What a report calls the weights that it is about."""

import pytest

from vitlab.weights.resolve import title_of


@pytest.mark.parametrize(
    ("weights", "title"),
    [
        ("cifar10", "vit_cifar.cifar10"),
        ("vit_b16.in21k", "vit_b16.in21k"),
        ("runs/flowers", "flowers"),
        ("runs/flowers/bundle", "flowers"),
        ("runs/flowers/bundle/model.safetensors", "flowers"),
        ("downloads/deit.npz", "deit"),
    ],
)
def test_weights_are_called_by_their_name_or_by_what_they_lie_in(weights: str, title: str) -> None:
    assert title_of(weights) == title
