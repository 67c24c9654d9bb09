"""The learning-rate range test (arXiv:1506.01186): the loss while the learning rate grows."""

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vitlab.data.order import seed_for
from vitlab.errors import ConfigError, Diverged, MissingExtra
from vitlab.io.files import replacing
from vitlab.machine.world import ALONE, World
from vitlab.training.config import TrainConfig
from vitlab.training.loop import Loader
from vitlab.training.loss import Loss, cross_entropy
from vitlab.training.state import new_state
from vitlab.training.step import train_step
from vitlab.training.trainable import train_mode

LOWEST, HIGHEST = 1e-6, 1.0
SMOOTHING = 0.9
HOPELESS = 1.5
"""The test ends at this multiple of the best loss."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """Smoothed loss after steps up to this learning rate."""

    lr: float
    loss: float


def find_lr(
    model: nn.Module,
    config: TrainConfig,
    loader: Loader,
    *,
    steps: int = 100,
    loss_of: Loss = cross_entropy,
    world: World = ALONE,
) -> list[Trial]:
    """Train a copy while the learning rate grows, until the loss is `HOPELESS`."""
    given = config.optimizer
    optimizer = replace(given, lr=1.0, muon_lr=given.muon_lr / given.lr)
    config = replace(config, optimizer=optimizer, head_first=0.0, ema=0.0)
    state = new_state(copy.deepcopy(model), config, world)
    train_mode(state.model)
    found: list[Trial] = []
    mean, best = 0.0, math.inf
    for step in range(steps):
        lr = LOWEST * (HIGHEST / LOWEST) ** (step / max(steps - 1, 1))
        torch.manual_seed(seed_for(config.seed, "find rate", step))
        try:
            batch = loader.batch(step)
            loss = train_step(state, batch, config, lr_factor=lr, loss_of=loss_of).loss.item()
        except Diverged:
            break
        mean = SMOOTHING * mean + (1 - SMOOTHING) * loss
        smoothed = mean / (1 - SMOOTHING ** (step + 1))
        found.append(Trial(lr=lr, loss=smoothed))
        best = min(best, smoothed)
        if smoothed > HOPELESS * best:
            break
    return found


def suggested_lr(trials: Sequence[Trial]) -> float:
    """A third of the learning rate with the lowest loss, beyond which the loss rises."""
    if not trials:
        raise ConfigError(
            "no learning rate gives a finite loss: the weights or images hold no numbers"
        )
    lowest = min(trials, key=lambda trial: trial.loss)
    return float(f"{lowest.lr / 3:.1g}")


def check_range_test(changes: Mapping[str, Any]) -> None:
    """Raise if the changes set the learning rate, or the plot cannot be drawn."""
    if "optimizer.lr" in changes:
        raise ConfigError(
            "find_lr and optimizer.lr: either finds or sets the learning rate; choose one"
        )
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise MissingExtra("plots", "the plot of --find-lr") from error


def draw_trials(trials: Sequence[Trial], suggested: float, path: Path) -> None:
    """Plot the loss against the learning rate, and mark the chosen one."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    axes = figure.add_subplot()
    axes.plot([t.lr for t in trials], [t.loss for t in trials], color="#0072b2", linewidth=2)
    axes.axvline(suggested, color="#d55e00", linestyle="--", linewidth=1.5)
    axes.annotate(
        f"taken: {suggested:g}",
        (suggested, max(t.loss for t in trials)),
        textcoords="offset points",
        xytext=(6, -4),
        color="#d55e00",
        va="top",
    )
    axes.set_xscale("log")
    axes.set_xlabel("learning rate")
    axes.set_ylabel("training loss, smoothed")
    axes.set_title("Loss while the learning rate grows from step to step", loc="left", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", alpha=0.3)
    with replacing(path) as file:
        figure.savefig(file, format="png", dpi=160)
