"""Optimizers (AdamW, SGD, Muon), their parameter groups, SAM, and learning-rate schedules."""

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from vitlab.training.config import OptimizerConfig, ScheduleConfig
from vitlab.training.muon import Muon, newton_schulz_flops
from vitlab.training.trainable import depth, rate_factor

ENCODER_MATRIX = re.compile(
    r"((vit\.)?encoder|decoder)\.blocks\.\d+\.(attention\.(qkv|proj)|mlp\.fc[12])\.weight"
)
NOT_DECAYED = re.compile(
    r"(^|\.)(cls_token|registers|positions|offsets|offset_bias|freqs|temperature|probe|gamma|"
    r"qv_bias|bias)\b"
)


class DecayedSGD(torch.optim.SGD):
    """SGD whose weight decay is not part of the gradient, and so not of the momentum."""

    DECAY = "decoupled_decay"

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Decay parameters with a gradient, then step."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.mul_(1 - group["lr"] * group[self.DECAY])
        return super().step(closure)


def decayed(name: str, parameter: nn.Parameter) -> bool:
    """Weight decay is for the weights of linear layers and convolutions."""
    return parameter.ndim >= 2 and not NOT_DECAYED.search(name)


def stacked(name: str) -> int:
    """Matrices that a parameter holds: query, key and value are fused into one."""
    return 3 if name.endswith("attention.qkv.weight") else 1


def matrices_of(model: nn.Module, config: OptimizerConfig) -> dict[str, nn.Parameter]:
    """Parameters updated by Muon; a kernel is a matrix with a row per filter, unless depthwise."""
    if config.name != "muon":
        return {}
    kernels = {
        id(module.weight)
        for module in model.modules()
        if isinstance(module, nn.Conv2d) and module.groups == 1
    }
    return {
        name: parameter
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
        and (
            ENCODER_MATRIX.fullmatch(name)
            or (config.muon_for == "all" and id(parameter) in kernels)
        )
    }


def build_optimizers(model: nn.Module, config: OptimizerConfig) -> list[Optimizer]:
    """One optimizer, or Muon and AdamW; every parameter belongs to exactly one group."""
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    own = matrices_of(model, config)
    matrices = [(p, stacked(name)) for name, p in named if name in own]
    if not matrices:
        return [_plain(model, named, config)]
    rest = [(name, p) for name, p in named if name not in own]
    muon = Muon(
        matrices,
        lr=config.muon_lr,
        momentum=config.momentum,
        weight_decay=config.weight_decay,
        iterations=config.muon_iterations,
    )
    return [muon, _plain(model, rest, config)]


def optimizer_flops(model: nn.Module, config: OptimizerConfig) -> int:
    """FLOPs of one update besides the passes through the model: those of Newton-Schulz."""
    total = 0
    for name, parameter in matrices_of(model, config).items():
        count = stacked(name)
        rows, columns = parameter.shape[0] // count, math.prod(parameter.shape[1:])
        total += count * newton_schulz_flops(rows, columns, iterations=config.muon_iterations)
    return total


def _plain(
    model: nn.Module, named: list[tuple[str, nn.Parameter]], config: OptimizerConfig
) -> Optimizer:
    blocks = depth(model)
    by_kind: dict[tuple[bool, float], list[nn.Parameter]] = defaultdict(list)
    for name, parameter in named:
        factor = rate_factor(name, blocks, config.layer_decay)
        by_kind[decayed(name, parameter), factor].append(parameter)
    key = DecayedSGD.DECAY if config.name == "sgd" else "weight_decay"
    groups = [
        {
            "params": parameters,
            "lr": config.lr * factor,
            key: config.weight_decay if decay else 0.0,
        }
        for (decay, factor), parameters in sorted(by_kind.items(), key=lambda kind: kind[0])
    ]
    if config.name == "sgd":
        return DecayedSGD(groups, lr=config.lr, momentum=config.momentum)
    return torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, fused=True)


# Learning-rate schedules: pure functions from a step to a factor of the peak learning rate.


def factor(config: ScheduleConfig, step: int, steps: int) -> float:
    """The factor for update number `step` (from 0) of `steps`."""
    warmup = config.warmup * steps
    if step < warmup:
        return (step + 1) / (warmup + 1)
    if config.kind in ("cosine", "linear"):
        # The last update still moves: a learning rate of exactly zero would waste it.
        progress = (step - warmup) / max(steps - warmup, 1)
        return 0.5 * (1 + math.cos(math.pi * progress)) if config.kind == "cosine" else 1 - progress
    held = 1.0 if config.kind == "constant" else math.sqrt((warmup + 1) / (step + 1))
    cooldown = config.cooldown * steps
    return held * min(1.0, (steps - step) / (cooldown + 1))


def low_from(config: ScheduleConfig, steps: int) -> float:
    """Number of updates after which the learning rate is low: at half of its fall, or cooling down.

    Without a cool-down, `constant` and `rsqrt` have no such phase: from the end of the warm-up.
    """
    if config.kind in ("cosine", "linear"):
        return steps * (1 + config.warmup) / 2
    return steps * (1 - config.cooldown if config.cooldown else config.warmup)


# Sharpness-aware minimisation (arXiv:2010.01412): the gradient where the loss is worst nearby.


@torch.no_grad()
def climb(model: nn.Module, radius: float) -> list[tuple[nn.Parameter, Tensor]]:
    """Move the weights by `radius` along their gradient; return each with where it was.

    By a gradient that overflowed, nowhere.
    """
    moved = [(p, p.detach().clone()) for p in model.parameters() if p.grad is not None]
    norm = torch.stack([p.grad.norm() for p, _ in moved if p.grad is not None]).norm()
    if not norm.isfinite():
        return []
    for parameter, _ in moved:
        assert parameter.grad is not None
        parameter.add_(parameter.grad, alpha=float(radius / (norm + 1e-12)))
    return moved


def sharpness_aware(
    model: nn.Module, backward: Callable[[], Tensor], radius: float
) -> Callable[[], Tensor]:
    """`backward` with the gradient of the worst neighbour; its loss is that of the weights.

    Both passes draw the same random numbers, such as the masks of a masked autoencoder.
    """
    device = next(model.parameters()).device
    drawing = [] if device.type == "cpu" else [device]

    def both() -> Tensor:
        with torch.random.fork_rng(devices=drawing, device_type=device.type):
            loss = backward()
        moved = climb(model, radius)
        model.zero_grad(set_to_none=True)
        with _statistics_kept(model):
            backward()
        with torch.no_grad():
            for parameter, was in moved:
                parameter.copy_(was)
        return loss

    return both


@contextmanager
def _statistics_kept(model: nn.Module) -> Iterator[None]:
    """No batch norm counts the second pass of a batch."""
    norms = [part for part in model.modules() if isinstance(part, nn.modules.batchnorm._BatchNorm)]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = 0.0
    try:
        yield
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
