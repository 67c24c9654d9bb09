"""Batch norm over a batch that several processes compute together.

`torch.nn.SyncBatchNorm` needs a GPU; this one is made of plain operations and sums over processes.
"""

from collections.abc import Callable
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from vitlab.errors import ConfigError

Sum = Callable[[Tensor], Tensor]
"""Sum of a tensor over all processes, as a new tensor."""


class _Summed(torch.autograd.Function):
    """Sum over processes; each of them has a gradient of the sum, and their sum flows back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, sum_of: Sum) -> Tensor:
        ctx.sum_of = sum_of
        return sum_of(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.sum_of(gradient), None


def _summed(x: Tensor, sum_of: Sum) -> Tensor:
    total: Tensor = cast(Any, _Summed).apply(x, sum_of)
    return total


class SharedBatchNorm2d(nn.BatchNorm2d):
    """Batch norm with the mean and the variance of the images of all processes."""

    def __init__(self, plain: nn.BatchNorm2d, sum_of: Sum) -> None:
        """Take over the parameters and the statistics of a plain one."""
        nn.Module.__init__(self)
        vars(self).update(vars(plain))
        self.sum_of = sum_of

    def forward(self, input: Float[Tensor, "B C H W"]) -> Float[Tensor, "B C H W"]:
        if not self.training:
            return super().forward(input)
        x = input.movedim(1, -1).reshape(-1, input.shape[1])  # [B*H*W, C]
        x = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        count = torch.full((1,), len(x), dtype=x.dtype, device=x.device)
        total = _summed(torch.cat([x.sum(dim=0), count]), self.sum_of)
        count = total[-1]
        mean = total[:-1] / count
        centred = x - mean
        variance = _summed(centred.square().sum(dim=0), self.sum_of) / count
        self._update(mean.detach(), variance.detach() * count / (count - 1))
        y = centred * (variance + self.eps).rsqrt()
        if self.affine:
            y = y * self.weight + self.bias
        shape = (len(input), *input.shape[2:], input.shape[1])
        return y.to(input.dtype).reshape(shape).movedim(-1, 1)

    @torch.no_grad()
    def _update(self, mean: Tensor, variance: Tensor) -> None:
        """Move the running statistics towards those of the batch."""
        if not self.track_running_stats:
            return
        assert self.num_batches_tracked is not None
        assert self.running_mean is not None
        assert self.running_var is not None
        self.num_batches_tracked.add_(1)
        momentum = self.momentum
        if momentum is None:
            momentum = 1.0 / float(self.num_batches_tracked)
        for running, found in ((self.running_mean, mean), (self.running_var, variance)):
            running.mul_(1 - momentum).add_(found, alpha=momentum)


def share_batch_norms(model: nn.Module, sum_of: Sum) -> None:
    """Replace batch norms in place; names and parameters stay."""
    for path, module in list(model.named_modules()):
        for name, child in module.named_children():
            if type(child) is nn.BatchNorm2d:
                setattr(module, name, SharedBatchNorm2d(child, sum_of))
            elif isinstance(child, _BatchNorm) and not isinstance(child, SharedBatchNorm2d):
                raise ConfigError(
                    f"{path}.{name}: {type(child).__name__} with several processes; valid: "
                    f"BatchNorm2d, or one process"
                )
