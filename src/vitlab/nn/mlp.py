"""The MLP block: two linear layers with GELU between them (arXiv:2010.11929, section 3.1).

Or with the square of ReLU (arXiv:2109.08668), which learns a little faster on small images, or
gated (SwiGLU, arXiv:2002.05202).
"""

from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from vitlab.nn.draws import Dropout
from vitlab.nn.init import init_mlp

Gelu = Literal["erf", "tanh", "quick"]
QUICK = 1.702
"""Factor of x sigmoid(1.702 x), the GELU of OpenAI's CLIP."""


class Mlp(nn.Module):
    """Linear layer to `mlp_width`, activation, and linear layer back to `width`."""

    def __init__(
        self,
        width: int,
        mlp_width: int,
        *,
        activation: Literal["gelu", "relu2"] = "gelu",
        gelu: Gelu = "erf",
        bias: bool = True,
        norm: nn.Module | None = None,
        dropout: float = 0.0,
    ) -> None:
        """`norm` normalises the activations before the second layer."""
        super().__init__()
        self.fc1 = nn.Linear(width, mlp_width, bias=bias)
        self.norm = norm
        self.fc2 = nn.Linear(mlp_width, width, bias=bias)
        self.squared = activation == "relu2"
        self.quick = gelu == "quick"
        self.approximate = "tanh" if gelu == "tanh" else "none"
        self.dropout = Dropout(dropout)
        init_mlp(self.fc1)
        init_mlp(self.fc2)

    def forward(self, x: Float[Tensor, "B N D"]) -> Float[Tensor, "B N D"]:
        x = self.activate(self.fc1(x))  # [B, N, F]
        if not self.training:
            return self.fc2(x if self.norm is None else self.norm(x))
        x = self.dropout(x)
        return self.dropout(self.fc2(x if self.norm is None else self.norm(x)))

    def activate(self, x: Float[Tensor, "B N F"]) -> Float[Tensor, "B N F"]:
        # In place: the widest tensor of the model is not needed again, unless a hook kept it.
        inplace = not torch.is_grad_enabled() and not self.fc1._forward_hooks
        if self.squared:
            return F.relu(x, inplace=inplace).square()
        if self.quick:
            return x * torch.sigmoid(QUICK * x)
        if inplace:
            return torch.ops.aten.gelu_(x, approximate=self.approximate)
        return F.gelu(x, approximate=self.approximate)


class GatedMlp(nn.Module):
    """SwiGLU: the SiLU of one linear layer times another, and a linear layer back to `width`."""

    def __init__(
        self,
        width: int,
        mlp_width: int,
        *,
        bias: bool = True,
        norm: nn.Module | None = None,
        dropout: float = 0.0,
    ) -> None:
        """`norm` normalises the product before the last layer."""
        super().__init__()
        self.gate = nn.Linear(width, mlp_width, bias=bias)
        self.fc1 = nn.Linear(width, mlp_width, bias=bias)
        self.norm = norm
        self.fc2 = nn.Linear(mlp_width, width, bias=bias)
        self.dropout = Dropout(dropout)
        for layer in (self.gate, self.fc1, self.fc2):
            init_mlp(layer)

    def forward(self, x: Float[Tensor, "B N D"]) -> Float[Tensor, "B N D"]:
        x = self.dropout(F.silu(self.gate(x)) * self.fc1(x))  # [B, N, F]
        return self.dropout(self.fc2(x if self.norm is None else self.norm(x)))
