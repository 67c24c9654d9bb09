"""Initialisation of the original code, part by part.

| part | weight | bias |
|---|---|---|
| patch projection, convolutions, `pre_logits` | truncated normal, variance 1 / fan-in | 0 |
| query, key, value, output of attention | Xavier uniform, each matrix by itself | 0 |
| probe of attention pooling | Xavier uniform, fan-in 1 | |
| MLP | Xavier uniform | normal, deviation 1e-6 |
| position tables (`position_std`), registers, relative offsets | normal, deviation 0.02 | |
| class token, head, convolution of conditional positions | 0 | 0 |
| output of attention and MLP, with `zero_init_residual` | 0 | 0 |
| LayerNorm, GroupNorm | 1 (last one of a ResNet block: 0) | 0 |
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

POSITION_STD = 0.02
# Truncation at two deviations reduces the deviation of a normal by this factor.
TRUNCATION = 0.87962566103423978


def lecun_normal_(weight: Tensor) -> None:
    """Truncated normal with variance 1 / fan-in; the fan-in is all axes but the first."""
    std = math.sqrt(1.0 / weight[0].numel()) / TRUNCATION
    nn.init.trunc_normal_(weight, std=std, a=-2 * std, b=2 * std)


def init_projection(layer: nn.Linear | nn.Conv2d) -> None:
    """Initialise a patch projection, a convolution, or the hidden layer of the head."""
    lecun_normal_(layer.weight)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


def init_attention(layer: nn.Linear, matrices: int = 1) -> None:
    """Initialise a projection of attention; the `matrices` of a fused one are drawn separately."""
    for matrix in layer.weight.detach().chunk(matrices):
        nn.init.xavier_uniform_(matrix)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


def init_mlp(layer: nn.Linear) -> None:
    """Initialise a layer of the MLP block."""
    nn.init.xavier_uniform_(layer.weight)
    if layer.bias is not None:
        nn.init.normal_(layer.bias, std=1e-6)


def init_zero(layer: nn.Module) -> None:
    """Zero the layer: the head (paper, section 3.2) and branches that start as zero."""
    for parameter in layer.parameters():
        nn.init.zeros_(parameter)


def position_table(*shape: int, std: float | None = None) -> nn.Parameter:
    """Initialised table of learned position embeddings; `std` is 0.02 unless given."""
    return nn.Parameter(torch.empty(shape).normal_(std=POSITION_STD if std is None else std))


class NoInitialisation(TorchFunctionMode):
    """Skip initialisation of tensors without memory: torch would first import its compiler."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        subject = args[0] if args else (kwargs or {}).get("tensor")
        in_place = name.endswith("_") and not name.endswith(("__", "requires_grad_"))
        if in_place and isinstance(subject, Tensor) and subject.is_meta:
            return subject
        return func(*args, **(kwargs or {}))
