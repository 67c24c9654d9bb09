"""Sharpness-aware minimisation (arXiv:2010.01412): the gradient where the loss is worst nearby."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


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
    """`backward` with the gradient of the worst neighbour; its loss is that of the weights."""

    def both() -> Tensor:
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
