"""LoRA (arXiv:2106.09685): a frozen linear layer learns through a product of two thin matrices."""

import re
from typing import cast

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

ADAPTED = re.compile(r"encoder\.blocks\.\d+\.(attention\.(qkv|proj)|mlp\.(gate|fc[12]))")
"""Layers that get a low-rank update."""


class LoraLinear(nn.Linear):
    """x Wᵀ + b + scale (x Aᵀ) Bᵀ; B starts at zero, so that nothing changes at first."""

    def __init__(self, linear: nn.Linear, *, rank: int, scale: float) -> None:
        nn.Module.__init__(self)
        if rank < 1:
            raise ValueError(f"rank {rank} is not at least 1")
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.scale = scale
        self.weight, self.bias = linear.weight, linear.bias
        self.lora_a = nn.Parameter(linear.weight.new_empty(rank, linear.in_features))
        self.lora_b = nn.Parameter(linear.weight.new_zeros(linear.out_features, rank))
        nn.init.normal_(self.lora_a, std=linear.in_features**-0.5)

    def forward(self, input: Float[Tensor, "*batch I"]) -> Float[Tensor, "*batch O"]:
        low = F.linear(F.linear(input, self.lora_a), self.lora_b)
        return F.linear(input, self.weight, self.bias) + self.scale * low

    @torch.no_grad()
    def merged(self) -> nn.Linear:
        """Plain linear layer that computes the same function."""
        linear = nn.Linear(
            self.in_features, self.out_features, bias=self.bias is not None, device="meta"
        )
        linear.weight = nn.Parameter(self.weight + self.scale * self.lora_b @ self.lora_a)
        linear.bias = self.bias
        return linear


def add_lora(model: nn.Module, *, rank: int, scale: float = 2.0) -> int:
    """Add a low-rank update to every large matrix of the encoder; return the number of updates."""
    names = [name for name, part in model.named_modules() if _adaptable(name, part)]
    for name in names:
        linear = cast(nn.Linear, model.get_submodule(name))
        _replace(model, name, LoraLinear(linear, rank=rank, scale=scale))
    return len(names)


def merge_lora(model: nn.Module) -> None:
    """Merge the updates into the matrices, which restores plain linear layers."""
    adapted = [name for name, part in model.named_modules() if isinstance(part, LoraLinear)]
    for name in adapted:
        _replace(model, name, cast(LoraLinear, model.get_submodule(name)).merged())


def _adaptable(name: str, part: nn.Module) -> bool:
    return isinstance(part, nn.Linear) and ADAPTED.fullmatch(name) is not None


def _replace(model: nn.Module, name: str, part: nn.Module) -> None:
    parent, _, own = name.rpartition(".")
    setattr(model.get_submodule(parent), own, part)
