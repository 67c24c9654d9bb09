"""Parts of a batch that are computed at the same time."""

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from vitlab.data.loader import Batch
from vitlab.machine.device import parts_at_once
from vitlab.models.variants import create_model
from vitlab.training.config import TrainConfig
from vitlab.training.loss import (
    Loss,
    binary_cross_entropy,
    cross_entropy,
    squared_error,
    weighted_cross_entropy,
)
from vitlab.training.state import new_state
from vitlab.training.step import backward, backward_side_by_side, independent, parts_of


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def batch(images: int = 19) -> Batch:
    generator = torch.Generator().manual_seed(0)
    return Batch(
        torch.randn(images, 3, 32, 32, generator=generator),
        torch.randint(10, (images,), generator=generator),
        torch.arange(images),
    )


LOSSES: dict[str, tuple[Loss, Callable[[Tensor], Tensor]]] = {
    "classes": (cross_entropy, lambda targets: targets),
    "rare classes": (weighted_cross_entropy(torch.linspace(0.2, 3.0, 10)), lambda targets: targets),
    "labels": (binary_cross_entropy(), lambda targets: one_hot(targets, 10).float()),
    "values": (
        squared_error(torch.full((10,), 4.0), torch.full((10,), 3.0)),
        lambda targets: targets[:, None] + torch.arange(10.0),
    ),
}


@pytest.mark.parametrize("task", LOSSES)
@pytest.mark.parametrize("parts", [2, 3])
def test_the_gradient_is_that_of_the_whole_batch(parts: int, task: str) -> None:
    loss_of, told = LOSSES[task]
    torch.manual_seed(0)
    model = create_model("vit_test").double()
    torch.nn.init.normal_(model.head.weight)
    model.head.bias.requires_grad_(False)
    images, targets, index = batch()
    images, targets = images.double(), told(targets)
    loss = loss_of(model(images), targets, 0.1)
    loss.backward()
    expected = {name: p.grad for name, p in model.named_parameters()}
    model.zero_grad(set_to_none=True)
    found = backward_side_by_side(model, Batch(images, targets, index), parts, loss_of, 0.1)
    # The loss is computed in float32.
    torch.testing.assert_close(found.double(), loss.detach().double(), atol=1e-6, rtol=1e-6)
    assert model.head.bias.grad is None
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, expected[name], atol=1e-6, rtol=1e-4)
    assert torch.get_num_threads() == 2


def test_a_step_takes_it_where_it_may_and_is_repeatable() -> None:
    torch.manual_seed(0)
    model, config = create_model("vit_test"), TrainConfig(model="vit_test")
    assert parts_of(model, batch(), config) == 2
    state = new_state(model, config)
    found = []
    for _ in range(3):
        backward(state, batch(), config)
        found.append([p.grad.clone() for p in model.parameters()])
        model.zero_grad(set_to_none=True)
    for again in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], again, strict=True))


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("vit_cifar", {}),  # batch norm
        ("vit_test", {"dropout": 0.1}),
        ("vit_test", {"attention_dropout": 0.1}),
        ("vit_test", {"drop_path": 0.1}),
        ("cnn_tutorial", {}),
    ],
)
def test_images_that_depend_on_more_stay_together(name: str, changes: dict[str, float]) -> None:
    assert not independent(create_model(name, **changes))
    assert independent(create_model("vit_test"))


@pytest.mark.parametrize(
    "changes",
    [{"accumulate": 2}, {"recompute_activations": True}, {"precision": "bfloat16"}],
)
def test_other_ways_to_compute_a_batch_come_first(changes: dict[str, object]) -> None:
    config = TrainConfig(model="vit_test", batch_size=20, **changes)
    assert parts_of(create_model("vit_test"), batch(20), config) == 1


def test_the_choice_follows_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parts_at_once("cpu", 2, 16) == 2
    assert parts_at_once("cpu", 2, 15) == 1
    assert parts_at_once("cpu", 1, 128) == 1
    assert parts_at_once("cpu", 8, 128) == 1
    assert parts_at_once("cuda", 2, 128) == 1
    monkeypatch.setenv("VITLAB_RUNTIME", "plain")
    assert parts_at_once("cpu", 2, 128) == 1
