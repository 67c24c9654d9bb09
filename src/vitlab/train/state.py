"""What training changes: one object, which a checkpoint holds whole."""

from dataclasses import dataclass, field

import torch
from torch import nn
from torch.optim import Optimizer

from vitlab.train.config import TrainConfig
from vitlab.train.ema import Ema
from vitlab.train.forward import Forward, training_forward
from vitlab.train.optim import build_optimizers


@dataclass
class TrainState:
    """Model, optimizers, averaged weights and progress."""

    model: nn.Module
    forward: Forward
    """The model as training calls it."""
    optimizers: list[Optimizer]
    ema: Ema | None
    scaler: torch.amp.GradScaler
    """Scales the loss in float16; does nothing in other precisions."""
    step: int = 0
    """Updates made so far."""
    highest: float = float("-inf")
    """Of what is chosen by, so far."""
    best: float = float("-inf")
    """The same of the weights that would be kept: the latest that are as good, but for noise."""
    best_step: int = 0
    since_best: int = 0
    """Evaluations since then."""
    seconds: float = 0.0
    """Time spent training, over all interruptions."""
    images: int = 0
    """Images that the updates saw, repetitions included."""
    flops: int = 0
    """What the updates cost; one that an interruption undid and that was made again counts once."""
    peak_lrs: list[list[float]] = field(default_factory=list)
    """Peak rate of every optimizer's groups."""


def new_state(model: nn.Module, config: TrainConfig) -> TrainState:
    """The state before step 1."""
    device = next(model.parameters()).device
    optimizers = build_optimizers(model, config.optimizer)
    return TrainState(
        model=model,
        forward=training_forward(model, config),
        optimizers=optimizers,
        ema=Ema(model, config.ema) if config.ema else None,
        scaler=torch.amp.GradScaler(device.type, enabled=config.precision == "float16"),
        peak_lrs=[[group["lr"] for group in o.param_groups] for o in optimizers],
    )
