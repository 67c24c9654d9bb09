"""Averaged weights: an exponential moving average that starts fast and slows down."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


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
        """Take over the average of a checkpoint."""
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
