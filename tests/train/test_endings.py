"""Runs that end early: because they diverge, or because they learn no more."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from train.runs import SMALL, metrics_of, random_batch, weights_of
from vitlab.errors import Diverged
from vitlab.models.registry import create_model
from vitlab.tasks import train as train_task
from vitlab.tasks.train import train
from vitlab.train import loop
from vitlab.train.config import TrainConfig
from vitlab.train.loop import fit
from vitlab.train.state import new_state
from vitlab.train.step import train_step
from vitlab.weights.files import open_weights

PATIENT = SMALL | {"budget": 20.0, "evaluations": 10, "patience": 3, "checkpoint_every": 4}


def poisoned(at: int) -> Any:
    """`train_step` whose batch is no number in one step."""

    def step(state: Any, batch: Any, config: TrainConfig, *, lr_factor: float) -> Any:
        if state.step == at:
            batch = batch._replace(images=batch.images * float("nan"))
        return train_step(state, batch, config, lr_factor=lr_factor)

    return step


def test_divergence_names_step_batch_and_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "train_step", poisoned(at=3))
    run = tmp_path / "run"
    with pytest.raises(Diverged) as caught:
        train(data="sample", out=run, changes=SMALL)
    message = str(caught.value)
    assert "diverged at step 4: loss nan" in message
    assert "in a batch of 32 training images (numbers " in message
    assert "try a lower rate" in message
    assert "\n" not in message

    [checkpoint] = (run / "checkpoints").glob("step-*")
    assert checkpoint.name == "step-00000002.safetensors"
    file = open_weights(checkpoint)
    assert all(file.read(name).isfinite().all() for name in file.shapes)
    file.close()

    monkeypatch.setattr(loop, "train_step", train_step)
    whole = train(data="sample", out=tmp_path / "whole", changes=SMALL)
    assert weights_of(train(out=run, resume=True).folder) == weights_of(whole.folder)
    assert metrics_of(run) == metrics_of(whole.folder)


def test_the_batch_that_diverged_changed_no_weight() -> None:
    config = TrainConfig(model="vit_test")
    state = new_state(create_model("vit_test"), config)
    before = [p.detach().clone() for p in state.model.parameters()]
    batch = random_batch(11)
    batch = batch._replace(images=batch.images / 0.0, index=torch.arange(100, 111))
    with pytest.raises(Diverged, match=r"11 training images \(numbers 100, 101, .*107, …\)"):
        train_step(state, batch, config, lr_factor=1.0)
    after = state.model.parameters()
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


class Plateau:
    """An evaluation that gets better twice, then never again; it depends on the weights alone."""

    def __init__(self) -> None:
        self.calls = 0

    def of(self, step: int) -> float:
        return min(step, 4) / 10

    def run(self, state: Any) -> Any:
        def evaluate(model: nn.Module) -> Iterator[tuple[str, float]]:
            self.calls += 1
            yield "accuracy", self.of(state.step)

        return evaluate


def with_plateau(monkeypatch: pytest.MonkeyPatch, plateau: Plateau, plug: int | None) -> None:
    """Let runs be judged by the plateau, and end before step `plug`."""

    def plugged(config: Any, state: Any, loader: Any, **rest: Any) -> None:
        batch = loader.batch

        def pull(step: int) -> Any:
            if step == plug:
                raise KeyboardInterrupt
            return batch(step)

        monkeypatch.setattr(loader, "batch", pull)
        fit(config, state, loader, **rest | {"evaluate": plateau.run(state)})

    monkeypatch.setattr(train_task, "fit", plugged)


def test_patience_ends_a_run_that_learns_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plateau = Plateau()
    with_plateau(monkeypatch, plateau, plug=None)
    whole = train(data="sample", out=tmp_path / "whole", changes=PATIENT).folder
    # Evaluated every second step; the best is step 4, and three more evaluations are waited for.
    assert max(m["step"] for m in metrics_of(whole)) == 10
    assert plateau.calls == 5
    kept = sorted(path.name for path in (whole / "checkpoints").iterdir())
    assert kept == ["best.safetensors", "step-00000008.safetensors", "step-00000010.safetensors"]

    part = tmp_path / "part"
    for plug in (3, 7, 9):
        with_plateau(monkeypatch, plateau, plug=plug)
        new = not part.exists()
        with pytest.raises(KeyboardInterrupt):
            train(
                data="sample" if new else None,
                out=part,
                changes=PATIENT if new else None,
                resume=not new,
            )
    with_plateau(monkeypatch, plateau, plug=None)
    train(out=part, resume=True)
    assert metrics_of(part) == metrics_of(whole)
    assert weights_of(part) == weights_of(whole)

    before = plateau.calls
    train(out=part, resume=True)  # it has ended: nothing is done again
    assert plateau.calls == before
    assert metrics_of(part) == metrics_of(whole)
