"""Stochastic depth, arXiv:1603.09382: a whole residual branch left out for some images."""

from jaxtyping import Float
from torch import Tensor, nn


class DropPath(nn.Module):
    """Zero the branch of an image with probability `rate` in training, and scale up the rest."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Float[Tensor, "B N D"]) -> Float[Tensor, "B N D"]:
        if not self.training or self.rate == 0.0:
            return x
        keep = 1.0 - self.rate
        return x * x.new_empty(x.shape[0], 1, 1).bernoulli_(keep).div_(keep)

    def extra_repr(self) -> str:
        return f"rate={self.rate}"
