"""Muon (Jordan et al., 2024): momentum whose update of a matrix is made orthogonal."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from vitlab.machine.device import dtype_of
from vitlab.machine.world import local

# Of the quintic iteration that drives all singular values towards one; Jordan's choice.
A, B, C = 3.4445, -4.7750, 2.0315
NOTHING = 1e-18
"""Momentum below this is zero. That of a unit that no longer learns halves every 14 steps until its
products are denormal, and some processors compute those a hundred times slower."""


Compute = Callable[[Sequence[nn.Parameter], Sequence[Tensor]], list[Tensor]]
"""Orthogonal updates of parameters, from whole updates."""
Spread = Callable[[Sequence[nn.Parameter], Sequence[Tensor], Compute], list[Tensor]]
"""Shards of orthogonal updates, from shards of updates."""


def newton_schulz_dtype(device: torch.device) -> torch.dtype:
    """bfloat16 where the device computes in it; elsewhere that would be four times slower."""
    return dtype_of("auto", device)


def orthogonalise(matrices: Float[Tensor, "S R C"], *, iterations: int) -> Float[Tensor, "S R C"]:
    """The nearest matrices with singular values near one, by Newton-Schulz iterations."""
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if tall else matrices
    x = x.to(newton_schulz_dtype(x.device))
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for _ in range(iterations):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=B, alpha=C), x, beta=A)
    return (x.mT if tall else x).to(matrices.dtype)


def newton_schulz_flops(rows: int, columns: int, *, iterations: int) -> int:
    """FLOPs of one call for one matrix, at 2 per multiply-add."""
    small, large = sorted((rows, columns))
    return iterations * (4 * small * small * large + 2 * small**3)


class Muon(torch.optim.Optimizer):
    """Muon for parameters given with the number of matrices that each of them stacks."""

    def __init__(
        self,
        params: Iterable[tuple[nn.Parameter, int]],
        *,
        lr: float,
        momentum: float,
        weight_decay: float,
        iterations: int,
    ) -> None:
        pairs = list(params)
        self.iterations = iterations
        self.matrices = {id(parameter): count for parameter, count in pairs}
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        super().__init__([parameter for parameter, _ in pairs], defaults)
        self.spread: Spread | None = None
        """Computes updates of parameters that processes hold in shards; None: none are."""

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """One update; matrices of one shape are orthogonalised together."""
        for group in self.param_groups:
            found = [parameter for parameter in group["params"] if parameter.grad is not None]
            updates = [self._momentum(parameter, group["momentum"]) for parameter in found]
            compute = self._orthogonal
            new = (
                compute(found, updates)
                if self.spread is None
                else self.spread(found, updates, compute)
            )
            for parameter, update in zip(found, new, strict=True):
                held = local(parameter)
                held.mul_(1 - group["lr"] * group["weight_decay"])
                held.add_(update.reshape(held.shape), alpha=-group["lr"] * self._scale(parameter))

    def _momentum(self, parameter: nn.Parameter, momentum: float) -> Tensor:
        """Nesterov's momentum, of the part of the parameter that this process holds."""
        assert parameter.grad is not None
        gradient, state = local(parameter.grad), self.state[parameter]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(parameter)
        buffer = local(state["momentum"]).lerp_(gradient, 1 - momentum)
        buffer.copy_(F.hardshrink(buffer, NOTHING))
        return torch.lerp(gradient, buffer, momentum)

    def _orthogonal(
        self, parameters: Sequence[nn.Parameter], updates: Sequence[Tensor]
    ) -> list[Tensor]:
        """Whole updates made orthogonal, with the matrices of a fused parameter separated."""
        by_shape: dict[tuple[int, ...], list[int]] = defaultdict(list)
        matrices = []
        for number, (parameter, update) in enumerate(zip(parameters, updates, strict=True)):
            count = self.matrices[id(parameter)]
            matrices.append(rearrange(update.flatten(1), "(s r) c -> s r c", s=count))
            by_shape[tuple(matrices[-1].shape)].append(number)
        found: dict[int, Tensor] = {}
        for numbers in by_shape.values():
            same = [matrices[number] for number in numbers]
            new = orthogonalise(torch.cat(same), iterations=self.iterations)
            found.update(zip(numbers, new.split([len(each) for each in same]), strict=True))
        return [found[number] for number in range(len(matrices))]

    def _scale(self, parameter: nn.Parameter) -> float:
        """Factor of the learning rate for matrices that are higher than wide."""
        rows = parameter.shape[0] // self.matrices[id(parameter)]
        return float(max(1.0, rows / math.prod(parameter.shape[1:])) ** 0.5)
