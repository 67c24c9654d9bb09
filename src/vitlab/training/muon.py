"""Muon (Jordan et al., 2024): momentum whose update of a matrix is made orthogonal."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from vitlab.machine.device import dtype_of

# Of the quintic iteration that drives all singular values towards one; Jordan's choice.
A, B, C = 3.4445, -4.7750, 2.0315
ITERATIONS = 5
NOTHING = 1e-18
"""Momentum below this is zero. That of a unit that no longer learns halves every 14 steps until its
products are denormal, and some processors compute those a hundred times slower."""


def newton_schulz_dtype(device: torch.device) -> torch.dtype:
    """bfloat16 where the device computes in it; elsewhere that would be four times slower."""
    return dtype_of("auto", device)


def orthogonalise(matrices: Float[Tensor, "S R C"]) -> Float[Tensor, "S R C"]:
    """The nearest matrices with singular values near one, by five Newton-Schulz iterations."""
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if tall else matrices
    x = x.to(newton_schulz_dtype(x.device))
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=B, alpha=C), x, beta=A)
    return (x.mT if tall else x).to(matrices.dtype)


def newton_schulz_flops(rows: int, columns: int) -> int:
    """FLOPs of one call for one matrix, at 2 per multiply-add."""
    small, large = sorted((rows, columns))
    return ITERATIONS * (4 * small * small * large + 2 * small**3)


class Muon(torch.optim.Optimizer):
    """Muon for parameters given with the number of matrices that each of them stacks."""

    def __init__(
        self,
        params: Iterable[tuple[nn.Parameter, int]],
        *,
        lr: float,
        momentum: float,
        weight_decay: float,
    ) -> None:
        pairs = list(params)
        self.matrices = {id(parameter): count for parameter, count in pairs}
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        super().__init__([parameter for parameter, _ in pairs], defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """One update; matrices of one shape are orthogonalised together."""
        for group in self.param_groups:
            by_shape: dict[tuple[int, ...], list[tuple[nn.Parameter, Tensor]]] = defaultdict(list)
            for parameter in group["params"]:
                if parameter.grad is not None:
                    update = self._momentum(parameter, group["momentum"])
                    by_shape[tuple(update.shape)].append((parameter, update))
            for pairs in by_shape.values():
                self._apply(pairs, group["lr"], group["weight_decay"])

    def _momentum(self, parameter: nn.Parameter, momentum: float) -> Float[Tensor, "S R C"]:
        """Nesterov's momentum, with the matrices of a fused parameter told apart."""
        gradient, state = parameter.grad, self.state[parameter]
        assert gradient is not None
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(parameter)
        buffer = state["momentum"].lerp_(gradient, 1 - momentum)
        buffer.copy_(F.hardshrink(buffer, NOTHING))
        update = torch.lerp(gradient, buffer, momentum)
        return rearrange(update.flatten(1), "(s r) c -> s r c", s=self.matrices[id(parameter)])

    def _apply(
        self, pairs: list[tuple[nn.Parameter, Tensor]], lr: float, weight_decay: float
    ) -> None:
        updates = orthogonalise(torch.cat([update for _, update in pairs]))
        rows, columns = updates.shape[1:]
        scale = max(1.0, rows / columns) ** 0.5
        for (parameter, _), new in zip(
            pairs, updates.split([len(update) for _, update in pairs]), strict=True
        ):
            parameter.mul_(1 - lr * weight_decay)
            parameter.add_(new.reshape(parameter.shape), alpha=-lr * scale)
