"""The learning-rate range test (arXiv:1506.01186): the loss while the rate grows."""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from vitlab.data.random import seed_for
from vitlab.errors import ConfigError, Diverged
from vitlab.training.config import TrainConfig
from vitlab.training.loop import Loader
from vitlab.training.loss import Loss, cross_entropy
from vitlab.training.state import new_state
from vitlab.training.step import train_step
from vitlab.training.trainable import train_mode

LOWEST, HIGHEST = 1e-6, 1.0
SMOOTHING = 0.9
HOPELESS = 1.5
"""Times the best loss at which the test ends."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """The loss, smoothed, after steps up to this peak rate."""

    rate: float
    loss: float


def find_rate(
    model: nn.Module,
    config: TrainConfig,
    loader: Loader,
    *,
    steps: int = 100,
    loss_of: Loss = cross_entropy,
) -> list[Trial]:
    """Train a copy with a rate that grows from step to step, until the loss is hopeless."""
    given = config.optimizer
    optimizer = replace(given, lr=1.0, muon_lr=given.muon_lr / given.lr)
    config = replace(config, optimizer=optimizer, head_first=0.0, ema=0.0)
    state = new_state(copy.deepcopy(model), config)
    train_mode(state.model)
    found: list[Trial] = []
    mean, best = 0.0, math.inf
    for step in range(steps):
        rate = LOWEST * (HIGHEST / LOWEST) ** (step / max(steps - 1, 1))
        torch.manual_seed(seed_for(config.seed, "find rate", step))
        try:
            batch = loader.batch(step)
            loss = train_step(state, batch, config, lr_factor=rate, loss_of=loss_of).loss.item()
        except Diverged:
            break
        mean = SMOOTHING * mean + (1 - SMOOTHING) * loss
        smoothed = mean / (1 - SMOOTHING ** (step + 1))
        found.append(Trial(rate=rate, loss=smoothed))
        best = min(best, smoothed)
        if smoothed > HOPELESS * best:
            break
    return found


def suggested_rate(trials: Sequence[Trial]) -> float:
    """A third of the rate with the lowest loss: past it, steps begin to do harm."""
    if not trials:
        raise ConfigError("no rate gives a finite loss: the weights or images hold no numbers")
    lowest = min(trials, key=lambda trial: trial.loss)
    return float(f"{lowest.rate / 3:.1g}")
