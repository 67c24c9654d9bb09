"""What several processes check about their common training; they run these functions together."""

import copy
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitlab.config import override
from vitlab.data.images import ArraySet
from vitlab.data.loader import ArrayLoader
from vitlab.images.preprocessing import Preprocessing
from vitlab.machine.world import ALONE, World, close_world, local, open_world, whole
from vitlab.models.variants import create_model
from vitlab.training.batch_pieces import rows_of
from vitlab.training.config import TrainConfig
from vitlab.training.pretraining import HiddenWatch, with_objective
from vitlab.training.state import new_state
from vitlab.training.step import backward, train_step

MEAN = STD = (0.5, 0.5, 0.5)
RANDOM = {"dropout": 0.2, "attention_dropout": 0.1, "drop_path": 0.3}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "uneven": ({}, {"batch_size": 13}),
    "parts": ({}, {"batch_size": 26, "accumulate": 2}),
    "random": (RANDOM, {"batch_size": 21}),
    "random parts": (RANDOM, {"batch_size": 26, "accumulate": 2}),
    "recomputed": (RANDOM, {"recompute_activations": True}),
    "mixed": ({}, {"augment.mixup": 0.8, "augment.cutmix": 1.0, "augment.flip": "random"}),
    "batch norm": (
        {"stem": "conv", "conv_norm": "batch", "conv_strides": (4, 2)},
        {"batch_size": 13},
    ),
    "mae": (
        {"classes": 0, "position": "sincos2d", "pool": "map"},  # without gradients: the pool
        {"batch_size": 13, "mae": {"decoder_width": 12, "decoder_heads": 3}},
    ),
    "masked patch": ({"classes": 0}, {"batch_size": 13, "masked_patch": {}}),
}
"""Changes of the model and of the settings."""


def images(count: int = 41) -> ArraySet:
    draw = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (count, 3, 32, 32), generator=draw, dtype=torch.uint8)
    return ArraySet(images=pixels, labels=torch.randint(10, (count,), generator=draw))


def loader_for(config: TrainConfig, world: World) -> ArrayLoader:
    """Batches of this process."""
    return ArrayLoader(
        images(),
        batch_size=config.batch_size,
        seed=config.seed,
        augment=config.augment,
        mean=MEAN,
        std=STD,
        classes=10,
        rows=rows_of(config, world),
    )


def config_of(changes: dict[str, Any]) -> TrainConfig:
    base = TrainConfig(model="vit_test", batch_size=12)
    for key in ("mae", "masked_patch"):
        if key in changes:
            base = override(base, {f"{key}.mask": 0.5})
            changes = {**changes, **{f"{key}.{k}": v for k, v in changes[key].items()}}
            del changes[key]
    return override(base, changes)


def model_for(config: TrainConfig, fields: dict[str, Any], dtype: torch.dtype) -> nn.Module:
    """The same random weights in every process; no zeros, which would hide mistakes."""
    torch.manual_seed(1)
    model: nn.Module = create_model("vit_test", **fields)
    if config.objective is not None:
        model = with_objective(model, config, Preprocessing(size=(32, 32), mean=MEAN, std=STD))
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.2)
    return model.to(dtype).train()


def entropy(logits: Tensor, targets: Tensor, label_smoothing: float) -> Tensor:
    """The usual loss, which is float32, in the type of the model."""
    return F.cross_entropy(logits, targets, label_smoothing=label_smoothing)


def mean(losses: Tensor, targets: Tensor, label_smoothing: float) -> Tensor:
    return losses.mean()


def gradients(
    model: nn.Module, config: TrainConfig, world: World, dtype: torch.dtype
) -> tuple[Tensor, dict[str, Tensor]]:
    """Loss, gradients and buffers after the backward pass of step 3."""
    state = new_state(model, config, world)
    batch = loader_for(config, world).batch(3)
    targets = batch.targets.to(dtype) if batch.targets.is_floating_point() else batch.targets
    batch = batch._replace(images=batch.images.to(dtype), targets=targets)
    torch.manual_seed(5)
    loss = backward(state, batch, config, entropy if config.objective is None else mean)
    found = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    return loss, {**found, **dict(model.named_buffers())}


def check_gradients() -> None:
    """Gradients of a step in float64, and in float32, against those of a single process."""
    world = open_world()
    for name, (fields, changes) in CASES.items():
        config = config_of(changes)
        for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
            model = model_for(config, fields, dtype)
            alone = gradients(copy.deepcopy(model), config, ALONE, dtype)
            together = gradients(model, config, world, dtype)
            # Masked patches are classified in float32, whatever the type of the model.
            assert_near(together, alone, 1e-5 if name == "masked patch" else tolerance, name)
    close_world()
    print("gradients agree")


def assert_near(found: Any, expected: Any, tolerance: float, name: str) -> None:
    (loss, tensors), (known, known_tensors) = found, expected
    assert tensors.keys() == known_tensors.keys(), name
    torch.testing.assert_close(loss, known, rtol=1e-5, atol=0)
    for key, value in known_tensors.items():
        error = (tensors[key] - value).double().norm() / value.double().norm().clamp(min=1e-3)
        assert error < tolerance, (name, key, float(error))


def check_fsdp_steps() -> None:
    """Losses and weights of three steps with FSDP2 and Muon, against those of a single process."""
    world = open_world()
    config = config_of({"batch_size": 13, "ema": 0.9, "optimizer.name": "muon", "parallel": "fsdp"})
    states = {}
    for name, where in (("alone", ALONE), ("shards", world)):
        model = model_for(config, {"drop_path": 0.2}, torch.float32)
        state = states[name] = new_state(model, config, where)
        loader, losses = loader_for(config, where), []
        for step in range(3):
            torch.manual_seed(step)
            stats = train_step(state, loader.batch(step), config, lr_factor=1.0)
            losses.append((float(stats.loss), float(stats.grad_norm)))
        if name == "alone":
            known = losses
    torch.testing.assert_close(losses, known, rtol=1e-5, atol=0)
    for expected, found in (
        (states["alone"].model.state_dict(), states["shards"].model.state_dict()),
        (states["alone"].ema.state, states["shards"].ema.state),
    ):
        for key, value in expected.items():
            error = (whole(found[key]) - value).norm() / value.norm().clamp(min=1e-3)
            # AdamW enlarges the rounding of gradients that are zero, those of the keys' biases.
            assert error < 1e-4, (key, float(error))
    _check_fsdp_objective(world)
    close_world()
    print("FSDP agrees")


def _check_fsdp_objective(world: World) -> None:
    """A model without labels is evaluated, trained and evaluated as in a single process."""
    fields, changes = CASES["mae"]
    config = config_of({**changes, "parallel": "fsdp"})
    found = []
    for where in (ALONE, world):
        model = model_for(config, fields, torch.float32)
        state = new_state(model, config, where)
        watch = HiddenWatch(batches=partial(map, tuple, [loader_for(config, ALONE).batch(0)]))
        before = dict(watch.run(model))
        torch.manual_seed(0)
        train_step(state, loader_for(config, where).batch(1), config, lr_factor=1.0, loss_of=mean)
        found.append((before, dict(watch.run(model))))
    torch.testing.assert_close(found[1], found[0], rtol=1e-5, atol=1e-6)
    assert found[0][0] != found[0][1]


def check_fsdp_memory() -> None:
    """Bytes of parameters, gradients and the optimizer's state of a ViT-L, against DDP's."""
    world = open_world()
    model = create_model("vit_l16", classes=10, image_size=32)
    whole_bytes = 4 * sum(parameter.nbytes for parameter in model.parameters())
    state = new_state(model.train(), config_of({"batch_size": 2, "parallel": "fsdp"}), world)
    loader = loader_for(config_of({"batch_size": 2}), world)
    backward(state, loader.batch(0), config_of({"batch_size": 2, "parallel": "fsdp"}))
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    held = sum(local(tensor).nbytes for tensor in (*model.parameters(), *gradients))
    for optimizer in state.optimizers:
        optimizer.step()
        values = [v for each in optimizer.state.values() for v in each.values()]
        held += sum(local(value).nbytes for value in values)
    print(f"{held / whole_bytes:.4f}")
    assert held < 0.6 * whole_bytes
    close_world()
