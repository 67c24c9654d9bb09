"""Computing activations twice saves memory and changes nothing else."""

import pytest
import torch
from torch import Tensor, nn

from tiny_runs import random_batch
from vitlab.errors import ConfigError
from vitlab.models.cost import PeakMemory
from vitlab.models.variants import create_model
from vitlab.training.config import TrainConfig
from vitlab.training.state import new_state
from vitlab.training.step import train_step

RANDOM = {"dropout": 0.2, "attention_dropout": 0.2, "drop_path": 0.5}


def gradients(recompute: bool, **changes: object) -> tuple[list[Tensor], Tensor]:
    """Of every parameter, and the random number that torch would draw next."""
    torch.manual_seed(0)
    model = create_model("vit_test", **changes).train()
    state = new_state(model, TrainConfig(recompute_activations=recompute))
    batch = random_batch(7)
    nn.functional.cross_entropy(state.forward(batch.images), batch.targets).backward()
    return [p.grad for p in model.parameters() if p.grad is not None], torch.rand(())


@pytest.mark.parametrize(
    "changes",
    [
        RANDOM,
        RANDOM | {"position_at": "every_layer"},
        RANDOM | {"attention": "lsa"},
        RANDOM | {"position": "conditional", "position_at": "every_layer", "pool_after": 1},
    ],
    ids=["stem", "every_layer", "lsa", "conditional_pooled"],
)
def test_gradients_are_the_same_bit_for_bit(changes: dict[str, object]) -> None:
    plain, next_plain = gradients(recompute=False, **changes)
    again, next_again = gradients(recompute=True, **changes)
    assert len(plain) == len(again) > 20
    assert all(torch.equal(a, b) for a, b in zip(plain, again, strict=True))
    assert torch.equal(next_plain, next_again)


def saved_bytes(recompute: bool, depth: int) -> int:
    """Of the distinct tensors that the forward pass keeps for the backward pass."""
    model = create_model("vit_test", depth=depth, **RANDOM).train()
    state = new_state(model, TrainConfig(recompute_activations=recompute))
    own = {p.data_ptr() for p in model.parameters()}
    sizes: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = state.forward(random_batch(16).images)
    assert result.requires_grad
    return sum(sizes.values())


def test_a_block_keeps_its_input_alone() -> None:
    plain, less = (
        (saved_bytes(recompute, depth=9) - saved_bytes(recompute, depth=5)) / 4
        for recompute in (False, True)
    )
    tokens, width = 17, 32
    # The input, and some bytes of the random state.
    assert 16 * tokens * width * 4 <= less < 16 * tokens * width * 4 * 1.5
    assert plain > 8 * less


def test_the_peak_of_an_update_falls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITLAB_RUNTIME", "plain")  # the meter sees its own thread alone
    peaks = []
    for recompute in (False, True):
        config = TrainConfig(recompute_activations=recompute)
        state = new_state(create_model("vit_test", depth=12), config)
        with PeakMemory() as memory:
            train_step(state, random_batch(64), config, lr_factor=1.0)
        peaks.append(memory.peak)
    assert peaks[1] < 0.5 * peaks[0]


def test_evaluation_recomputes_nothing() -> None:
    state = new_state(create_model("vit_test"), TrainConfig(recompute_activations=True))
    with torch.inference_mode():
        assert state.model(random_batch(2).images).shape == (2, 10)


@pytest.mark.parametrize("name", ["cnn_tutorial", "resnet18_cifar"])
def test_models_without_an_encoder_say_so(name: str) -> None:
    config = TrainConfig(model=name, recompute_activations=True)
    with pytest.raises(ConfigError, match=f"encoder blocks, and {name} has none"):
        new_state(create_model(name), config)
