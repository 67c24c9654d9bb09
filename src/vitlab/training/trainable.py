"""Trainable parameters at each step: head first, frozen blocks, LoRA, layer-wise decay."""

import re

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from vitlab.errors import ConfigError
from vitlab.nn.lora import add_lora
from vitlab.training.config import TrainConfig

HEAD = re.compile(r"(head|pre_logits)\.")
BLOCK = re.compile(r"encoder\.blocks\.(\d+)\.")
WHITENED = re.compile(r"stem\.(convs\.0\.conv|proj)\.weight")
LAST = re.compile(r"(head|pre_logits|pool|pooled_norm|norm|encoder\.norm)\.")


def prepare_learning(model: nn.Module, config: TrainConfig) -> None:
    """Add LoRA and freeze parameters as configured, before the optimizer is built."""
    blocks = depth(model)
    if config.frozen_blocks > blocks:
        raise ConfigError(f"frozen_blocks {config.frozen_blocks}; the model has {blocks} blocks")
    if config.learns == "lora" and config.frozen_blocks:
        raise ConfigError(
            f"frozen_blocks {config.frozen_blocks} and learns lora: the weights of all blocks are "
            f"frozen, and updates of low rank are in each; valid: one of them"
        )
    if config.learns == "lora" and not add_lora(model, rank=config.lora_rank):
        raise ConfigError(f"learns lora; {config.model} has no encoder that could")
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(_ever_learns(name, config))


def set_learning(model: nn.Module, config: TrainConfig, step: int, steps: int) -> None:
    """Set which parameters have gradients at this step."""
    alone = head_alone(config, step, steps)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(
            _ever_learns(name, config) and (not alone or HEAD.match(name) is not None)
        )


def train_mode(model: nn.Module) -> None:
    """As for training, but for batch norms that do not learn: their statistics stay as they are."""
    model.train()
    for module in model.modules():
        if isinstance(module, _BatchNorm):
            learning = [parameter.requires_grad for parameter in module.parameters()]
            module.train(any(learning) or not learning)


def head_alone(config: TrainConfig, step: int, steps: int) -> bool:
    """True if only the head is trained at this step."""
    return step < config.head_first * steps


def rate_factor(name: str, blocks: int, layer_decay: float) -> float:
    """`layer_decay` to the power of the layers above: the head 1, the stem least."""
    if LAST.match(name):
        return 1.0
    block = BLOCK.match(name)
    layer = 0 if block is None else int(block[1]) + 1
    return layer_decay ** (blocks + 1 - layer)


def passes(config: TrainConfig, *, head_alone: bool) -> int:
    """Cost of an update in forward passes: a backward pass costs two, that of a head none."""
    once = 1 if head_alone or config.learns == "head" else 3
    return 2 * once if config.optimizer.sam else once


def depth(model: nn.Module) -> int:
    """Number of encoder blocks."""
    found = [int(m[1]) for name, _ in model.named_parameters() if (m := BLOCK.match(name))]
    return 1 + max(found, default=-1)


def _ever_learns(name: str, config: TrainConfig) -> bool:
    if HEAD.match(name):
        return True
    if config.learns == "head" or (config.whiten_frozen and WHITENED.fullmatch(name)):
        return False
    if config.learns == "lora":
        return "lora_" in name
    block = BLOCK.match(name)
    if block is not None:
        return int(block[1]) >= config.frozen_blocks
    return not config.frozen_blocks or LAST.match(name) is not None
