"""The batch size that fits: found by trying on an accelerator, by measuring on a CPU."""

import copy
import gc
import math
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import nn

from vitlab.data.loader import Batch
from vitlab.errors import ConfigError, OutOfMemory
from vitlab.machine.device import free_bytes, is_out_of_memory
from vitlab.models.config import pair
from vitlab.models.cost import PeakMemory
from vitlab.training.config import TrainConfig
from vitlab.training.loss import Loss, cross_entropy
from vitlab.training.pretraining import mean_loss
from vitlab.training.state import TrainState, new_state
from vitlab.training.step import backward, parts_of, train_step

SHARE = 0.8
"""Share of the free memory that an update may use; the rest is for data and other programs."""
AMPLE = 4000
"""Times the bytes of its pixels that hardly a model takes for an image."""
SMALL = (4, 8)
"""Images that a CPU's memory is measured with: two points make a line."""


def fitting_batch_size(model: nn.Module, config: TrainConfig, *, largest: int) -> int | None:
    """`largest` or the first power of two below it whose update fits; None: not even one image."""
    wanted = _candidates(config, largest)
    if _device(model).type != "cpu":
        return next((size for size in wanted if _works(model, config, size)), None)
    free = free_bytes()
    if free is None:
        raise ConfigError("the free memory of this machine is unknown; pass --batch-size N")
    cost = _cost_on_cpu(model, config)
    fitting = (size for size in wanted if cost.of(_at_once(model, config, size)) < SHARE * free)
    return next(fitting, None)


def check_memory(model: nn.Module, config: TrainConfig, images: int | None = None) -> None:
    """Raise on a CPU if an update cannot fit: the system would kill the process.

    `images` are those of the batch that this machine computes; None: all.
    """
    free, part = free_bytes(), _at_once(model, config, images or config.batch_size)
    if free is None or _device(model).type != "cpu":
        return
    # Looked at closely only where it might matter: measuring takes two small updates.
    if part * _grey(model, 1).images.nbytes * AMPLE < free:
        return
    if _cost_on_cpu(model, config).of(part) > free:
        raise out_of_memory(model, config)


def out_of_memory(model: nn.Module, config: TrainConfig) -> OutOfMemory:
    """The error for batches that do not fit, with a size that does."""
    half = config.batch_size // 2
    known = _device(model).type != "cpu" or free_bytes() is not None
    fitting = fitting_batch_size(model, config, largest=half) if half and known else half or None
    return OutOfMemory(config.batch_size, advice(fitting))


def advice(fitting: int | None) -> str:
    """Advice if memory does not suffice; batches of `fitting` images would fit."""
    less = "--set recompute_activations=true takes less for the same batch"
    if fitting is None:
        return f"no smaller one fits either: choose a smaller model; {less}"
    return (
        f"{fitting} would fit: pass --batch-size {fitting}, or --batch-size auto to have the size "
        f"found; {less}, and so does --set accumulate=N"
    )


@dataclass(frozen=True, slots=True)
class Cost:
    """Bytes of an update: a fixed number, and a number for each image of a part."""

    fixed: float
    each: float

    def of(self, images: float) -> float:
        """Peak of an update whose parts have this many images."""
        return self.fixed + self.each * images


def _at_once(model: nn.Module, config: TrainConfig, size: int) -> float:
    """Images of a batch whose activations are in memory at the same time, on a CPU."""
    one = _grey(model, 1)
    if parts_of(model, one._replace(images=one.images.expand(size, -1, -1, -1)), config) > 1:
        return size
    return size / config.accumulate


def _candidates(config: TrainConfig, largest: int) -> list[int]:
    """Candidate sizes, largest first: powers of two times the number of parts of a batch."""
    unit = math.lcm(config.accumulate, config.augment.repeats)
    sizes = {unit * 2**power for power in range(largest.bit_length())}
    return sorted({n for n in {largest, *sizes} if n <= largest and n % unit == 0}, reverse=True)


def _works(model: nn.Module, config: TrainConfig, size: int) -> bool:
    """True if batches of this size fit into the device's memory."""
    try:
        _two_updates(model, replace(config, compile=False), size)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        fits = False
    else:
        fits = True
    # Only here, where the error and what its frames hold are gone, can the memory be returned.
    gc.collect()
    torch.accelerator.empty_cache()
    return fits


def _two_updates(model: nn.Module, config: TrainConfig, size: int) -> None:
    """Train a copy for two steps; the optimizer has its memory in the second."""
    trial = new_state(copy.deepcopy(model).train(), config)
    for _ in range(2):
        train_step(trial, _grey(model, size), config, lr_factor=0.0, loss_of=_loss(config))


def _cost_on_cpu(model: nn.Module, config: TrainConfig) -> Cost:
    """Measure the cost with few images, so that memory always suffices."""
    config = replace(config, accumulate=1, compile=False)
    few, more = SMALL
    copied = copy.deepcopy(model).train()
    with PeakMemory() as memory:
        trial = new_state(copied, config)
        train_step(trial, _grey(model, few), config, lr_factor=0.0, loss_of=_loss(config))
    each = (_pass_bytes(trial, config, more) - _pass_bytes(trial, config, few)) / (more - few)
    return Cost(memory.peak, each)


def _pass_bytes(trial: TrainState, config: TrainConfig, size: int) -> int:
    """Peak of a pass forward and back, where gradients have their memory already.

    Few images of a large model take less than its gradients, which would hide them.
    """
    backward(trial, _grey(trial.model, size), config, _loss(config))
    with PeakMemory() as memory:
        backward(trial, _grey(trial.model, size), config, _loss(config))
    return memory.peak


def _loss(config: TrainConfig) -> Loss:
    """A loss that fits the model's output."""
    return cross_entropy if config.objective is None else mean_loss


def _grey(model: nn.Module, size: int) -> Batch:
    shape = cast(Any, model.config)
    device = _device(model)
    return Batch(
        torch.zeros(size, shape.channels, *pair(shape.image_size), device=device),
        torch.zeros(size, dtype=torch.long, device=device),
        torch.arange(size),
    )


def _device(model: nn.Module) -> torch.device:
    return next(model.parameters()).device
