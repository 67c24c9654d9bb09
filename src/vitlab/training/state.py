"""The training state, one object that a checkpoint holds whole, and the averaged weights."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from vitlab.errors import ConfigError
from vitlab.machine.device import dtype_of
from vitlab.machine.world import ALONE, World
from vitlab.models.vit import logits_of
from vitlab.nn.encoder import Encoder
from vitlab.training.config import TrainConfig
from vitlab.training.optim import build_optimizers

# The forward pass as training runs it: plain, with less memory, or compiled.

Forward = Callable[[Tensor], Tensor]

BACKEND = "inductor"
"""Backend of `torch.compile`."""


def training_forward(model: nn.Module, config: TrainConfig) -> Forward:
    """Forward pass as configured, not compiled; the model itself keeps its names."""
    encoders = [module for module in model.modules() if isinstance(module, Encoder)]
    if config.recompute_activations and not encoders:
        raise ConfigError(
            f"recompute_activations works on encoder blocks, and {config.model} has none; "
            f"valid: a vit_… model, or recompute_activations=false"
        )
    for encoder in encoders:
        encoder.recompute = config.recompute_activations
    return logits_of(model)


def compiled(forward: Forward, config: TrainConfig) -> Forward:
    """Forward pass compiled, if configured."""
    return torch.compile(forward, backend=BACKEND) if config.compile else forward


def autocast(config: TrainConfig, device: torch.device) -> torch.autocast:
    """Context of a forward pass in the precision of the config."""
    dtype = dtype_of(config.precision, device)
    return torch.autocast(device.type, dtype, enabled=dtype != torch.float32)


def check_compiler(device: torch.device) -> None:
    """Compile one small function, to report a missing compiler before anything is written."""

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
    """First line of the innermost error."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = str(error).strip().splitlines()
    return lines[0].strip().rstrip(".") if lines else type(error).__name__


# Averaged weights: an exponential moving average that starts fast and slows down.


class Ema:
    """The average of a model's floating-point state; counters are copied."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.state = {name: value.detach().clone() for name, value in model.state_dict().items()}

    @torch.no_grad()
    def update(self, model: nn.Module, step: int) -> None:
        """Move towards the model after update number `step` (from 0)."""
        # Early on, the average of few steps: the decay is reached as 1 - 10 / step grows.
        decay = min(self.decay, (1 + step) / (10 + step))
        for name, value in model.state_dict().items():
            average = self.state[name]
            if average.is_floating_point():
                average.lerp_(value, 1 - decay)
            else:
                average.copy_(value)

    def load(self, state: dict[str, Tensor]) -> None:
        """Load the average of a checkpoint."""
        for name, value in state.items():
            self.state[name].copy_(value)


@contextmanager
def averaged(model: nn.Module, ema: Ema | None) -> Iterator[nn.Module]:
    """The model with its averaged weights, as long as the block lasts."""
    if ema is None:
        yield model
        return
    own = {name: value.detach().clone() for name, value in model.state_dict().items()}
    model.load_state_dict(ema.state)
    try:
        yield model
    finally:
        model.load_state_dict(own)


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
    """Best value so far of the metric that chooses weights."""
    best: float = float("-inf")
    """Its value for the weights that would be kept: as good as `highest`, up to noise."""
    best_loss: float = float("inf")
    lowest_loss: float = float("inf")
    """Lowest loss of weights that were kept, since accuracy last improved clearly."""
    best_step: int = 0
    since_best: int = 0
    """Evaluations at a low learning rate since the last that was as good, up to noise."""
    seconds: float = 0.0
    """Time spent training, over all interruptions."""
    images: int = 0
    """Images that the updates saw, repetitions included."""
    flops: int = 0
    """Cost of the updates; a repeated update after an interruption counts once."""
    peak_lrs: list[list[float]] = field(default_factory=list)
    """Peak learning rate of every optimizer's groups."""
    world: World = ALONE
    """Processes that train the model together."""
    unsynced: Callable[[], AbstractContextManager[None]] = nullcontext
    """Context of a backward pass whose gradients are not added over the processes yet."""
    sharded: bool = False
    """True if each process holds a part of every tensor."""
    skeleton: nn.Module | None = None
    """A model in shards as a whole one without memory, to count its operations; None: `model`."""

    @property
    def chosen(self) -> bool:
        """True if an evaluation chose weights; those of step 0 may be chosen too."""
        return self.best > float("-inf")


def new_state(model: nn.Module, config: TrainConfig, world: World = ALONE) -> TrainState:
    """The state before step 1; every process starts from the weights of the first."""
    device = next(model.parameters()).device
    forward = training_forward(model, config)
    more: dict[str, Any] = {}
    if world.size > 1:
        from vitlab.training.parallel import parallelise

        world.copy_from_first(model.state_dict().values())
        forward, more = parallelise(model, forward, config, world)
    optimizers = build_optimizers(model, config.optimizer)
    if more.get("sharded"):
        from vitlab.training.parallel import spread_muon

        spread_muon(optimizers, world)
    return TrainState(
        model=model,
        forward=compiled(forward, config),
        optimizers=optimizers,
        ema=Ema(model, config.ema) if config.ema else None,
        scaler=torch.amp.GradScaler(device.type, enabled=config.precision == "float16"),
        peak_lrs=[[group["lr"] for group in o.param_groups] for o in optimizers],
        world=world,
        **more,
    )
