"""What training changes: one object, which a checkpoint holds whole."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from vitlab.errors import ConfigError
from vitlab.models.vit import logits_of
from vitlab.nn.encoder import Encoder
from vitlab.training.config import TrainConfig
from vitlab.training.ema import Ema
from vitlab.training.optim import build_optimizers

# The forward pass as training runs it: plain, with less memory, or compiled.

Forward = Callable[[Tensor], Tensor]

BACKEND = "inductor"
"""What turns the traced model into code."""


def training_forward(model: nn.Module, config: TrainConfig) -> Forward:
    """Images to logits as the config asks; the model itself keeps its names and its eager form."""
    encoders = [module for module in model.modules() if isinstance(module, Encoder)]
    if config.recompute_activations and not encoders:
        raise ConfigError(
            f"recompute_activations works on encoder blocks, and {config.model} has none; "
            f"valid: a vit_… model, or recompute_activations=false"
        )
    for encoder in encoders:
        encoder.recompute = config.recompute_activations
    answer = logits_of(model)
    return torch.compile(answer, backend=BACKEND) if config.compile else answer


def check_compiler(device: torch.device) -> None:
    """Compile one small function, so that a missing compiler is told before anything is written."""

    def bend(x: Tensor) -> Tensor:
        return (x * x + 1).relu()

    compiled: Any = torch.compile(bend, backend=BACKEND)
    try:
        # A cached result would hide that the compiler has gone.
        settings: Any = torch.compiler.config
        with warnings.catch_warnings(), settings.patch(force_disable_caches=True):
            warnings.simplefilter("ignore")  # torch says that there are no caches
            compiled(torch.ones(64, device=device))
    except Exception as error:
        raise ConfigError(
            f"compile=true finds no working compiler for {device.type} ({_reason(error)}); "
            f"install one (on a CPU: g++), or train with compile=false"
        ) from error


def _reason(error: BaseException) -> str:
    """What happened at the bottom, in the first line of it."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = str(error).strip().splitlines()
    return lines[0].strip().rstrip(".") if lines else type(error).__name__


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
