"""Small runs without data, and what is in their folders."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vitlab.data.loader import Batch
from vitlab.models.config import ViTConfig
from vitlab.models.variants import create_model
from vitlab.training.config import TrainConfig
from vitlab.training.loop import RunFiles, fit
from vitlab.training.loss import Goal
from vitlab.training.state import TrainState, new_state

CONFIG = TrainConfig(model="vit_test", batch_size=8, evaluations=2, checkpoint_every=2)
CHANGES: dict[str, Any] = {
    "model": "vit_test",
    "batch_size": 32,
    "budget": 4.0,
    "budget_in": "steps",
    "evaluations": 1,
    "checkpoint_every": 2,
}
"""The same for a whole run."""


def metrics_of(run: Path) -> list[dict[str, Any]]:
    """Every line of `metrics.jsonl`, without its time."""
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k != "time"} for line in lines]


def random_batch(size: int, seed: int = 0) -> Batch:
    """Noise of ten classes."""
    draw = torch.Generator().manual_seed(seed)
    return Batch(
        torch.randn(size, 3, 32, 32, generator=draw),
        torch.randint(10, (size,), generator=draw),
        torch.arange(100, 100 + size),
    )


class Noise:
    """A loader of random batches; one step may be poisoned, and one may pull the plug."""

    def __init__(self, size: int, *, poison: int | None, plug: int | None) -> None:
        self.size, self.poison, self.plug = size, poison, plug
        self.broken: dict[Path, str] = {}
        self.steps_per_epoch = 10.0

    def batch(self, step: int) -> Batch:
        if step == self.plug:
            raise KeyboardInterrupt
        batch = random_batch(self.size, seed=step)
        factor = float("nan") if step == self.poison else 1.0
        return batch._replace(images=batch.images * factor)

    def close(self) -> None:
        pass


def fit_noise(
    folder: Path,
    *,
    steps: int,
    poison: int | None = None,
    plug: int | None = None,
    best_at: int = 1000,
    values: Sequence[float] | None = None,
    losses: Sequence[float] | None = None,
    first: bool = False,
    noise: float = 0.0,
    network: ViTConfig | None = None,
    **changes: Any,
) -> TrainState:
    """Train on noise, from the latest checkpoint; the accuracy grows until step `best_at`.

    It is `values[step - 1]` where they are given, the loss `losses[step - 1]`; `noise` of the
    accuracy is said to be chance; `network` replaces `vit_test`. With `first`, step 0 is evaluated:
    the last of the values.
    """
    config = replace(CONFIG, **changes)
    torch.manual_seed(0)
    model = create_model("vit_test", drop_path=0.1) if network is None else create_model(network)
    state = new_state(model, config)

    def evaluate(model: nn.Module) -> Iterator[tuple[str, float]]:
        with torch.inference_mode():
            assert model.eval()(random_batch(3).images).shape == (3, 10)
        rising = best_at - abs(state.step - best_at)
        yield "accuracy", rising / 1000 if values is None else values[state.step - 1]
        if losses is not None:
            yield "loss", losses[state.step - 1]

    fit(
        config,
        state,
        Noise(config.batch_size, poison=poison, plug=plug),
        steps=steps,
        evaluate=evaluate,
        files=RunFiles(folder=folder),
        watch=lambda metric: None,
        goal=Goal(noise=lambda value: noise),
        first=first,
    )
    return state


def same_weights(a: nn.Module, b: nn.Module) -> bool:
    """Bit for bit, with the same names."""
    left: dict[str, Tensor] = a.state_dict()
    right: dict[str, Tensor] = b.state_dict()
    return list(left) == list(right) and all(torch.equal(left[k], right[k]) for k in left)
