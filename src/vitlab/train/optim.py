"""Which parameter is updated how: weight decay only where it belongs, matrices to Muon."""

import re
from collections import defaultdict
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from vitlab.train.config import OptimizerConfig
from vitlab.train.learning import depth, rate_factor
from vitlab.train.muon import Muon, newton_schulz_flops

ENCODER_MATRIX = re.compile(
    r"((vit\.)?encoder|decoder)\.blocks\.\d+\.(attention\.(qkv|proj)|mlp\.fc[12])\.weight"
)
NOT_DECAYED = re.compile(
    r"(^|\.)(cls_token|registers|positions|offsets|offset_bias|temperature|probe|gamma)\b"
)


class DecayedSGD(torch.optim.SGD):
    """SGD whose weight decay is not part of the gradient, and so not of the momentum."""

    DECAY = "decoupled_decay"

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Shrink what has a gradient, then step."""
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
    """What learns by Muon: a kernel is a matrix with a row per filter, unless it is depthwise."""
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
    )
    return [muon, _plain(model, rest, config)]


def optimizer_flops(model: nn.Module, config: OptimizerConfig) -> int:
    """FLOPs of one update beyond the passes through the model: Newton-Schulz of what learns."""
    total = 0
    for name, parameter in matrices_of(model, config).items():
        count = stacked(name)
        rows, columns = parameter.shape[0] // count, parameter[0].numel()
        total += count * newton_schulz_flops(rows, columns)
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
