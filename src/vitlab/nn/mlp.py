"""The MLP block: two linear layers with GELU between them (arXiv:2010.11929, section 3.1).

Or with the square of ReLU (arXiv:2109.08668), which learns a little faster on small images.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from vitlab.nn.init import init_mlp


class Mlp(nn.Module):
    """Linear layer to `mlp_width`, activation, and linear layer back to `width`."""

    def __init__(
        self,
        width: int,
        mlp_width: int,
        *,
        activation: Literal["gelu", "relu2"] = "gelu",
        gelu: Literal["erf", "tanh"] = "erf",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, mlp_width)
        self.fc2 = nn.Linear(mlp_width, width)
        self.squared = activation == "relu2"
        self.approximate = "tanh" if gelu == "tanh" else "none"
        self.dropout = nn.Dropout(dropout)
        init_mlp(self.fc1)
        init_mlp(self.fc2)

    def forward(self, x: Float[Tensor, "B N D"]) -> Float[Tensor, "B N D"]:
        x = self.fc1(x)  # [B, N, F]
        # In place: the widest tensor of the model is not needed again, unless a hook kept it.
        inplace = not torch.is_grad_enabled() and not self.fc1._forward_hooks
        if self.squared:
            x = F.relu(x, inplace=inplace).square()
        elif inplace:
            torch.ops.aten.gelu_(x, approximate=self.approximate)
        else:
            x = F.gelu(x, approximate=self.approximate)
        if not self.training:
            return self.fc2(x)
        return self.dropout(self.fc2(self.dropout(x)))
