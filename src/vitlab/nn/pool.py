"""From many tokens to fewer: class token, averages, attention pooling, and a coarser grid."""

from typing import Literal

import torch
from einops import reduce
from jaxtyping import Float
from torch import Tensor, nn

from vitlab.nn.attention import MultiHeadAttention
from vitlab.nn.mlp import Mlp


def halve(
    tokens: Float[Tensor, "B N D"], grid: tuple[int, int], prefix: int
) -> Float[Tensor, "B M D"]:
    """Each 2x2 patches of an even grid averaged into one; the first `prefix` tokens stay."""
    patches = reduce(
        tokens[:, prefix:], "b (h y w x) d -> b (h w) d", "mean", h=grid[0] // 2, y=2, x=2
    )
    return torch.cat([tokens[:, :prefix], patches], dim=1) if prefix else patches


class AttentionPool(nn.Module):
    """MAP head of big_vision: a learned probe attends to all tokens, an MLP follows."""

    def __init__(
        self,
        width: int,
        *,
        heads: int,
        mlp_width: int,
        gelu: Literal["erf", "tanh"] = "erf",
        norm_eps: float = 1e-6,
    ) -> None:
        super().__init__()
        self.probe = nn.Parameter(torch.empty(1, 1, width))
        self.attention = MultiHeadAttention(width, heads=heads)
        self.norm = nn.LayerNorm(width, eps=norm_eps)
        self.mlp = Mlp(width, mlp_width, gelu=gelu)
        nn.init.xavier_uniform_(self.probe.detach()[0])

    def forward(self, tokens: Float[Tensor, "B N D"]) -> Float[Tensor, "B D"]:
        return self.finish(self.attention(self.probes(tokens.shape[0]), tokens))

    def probes(self, images: int) -> Float[Tensor, "B 1 D"]:
        """Learned queries, repeated for each image."""
        return self.probe.expand(images, -1, -1)

    def finish(self, x: Float[Tensor, "B 1 D"]) -> Float[Tensor, "B D"]:
        """Pooled vector of each image, from the attention output."""
        return (x + self.mlp(self.norm(x)))[:, 0]


class MeanPool(nn.Module):
    """The average of the tokens behind the first `skip`."""

    def __init__(self, skip: int) -> None:
        super().__init__()
        self.skip = skip

    def forward(self, tokens: Float[Tensor, "B N D"]) -> Float[Tensor, "B D"]:
        return tokens[:, self.skip :].mean(dim=1)

    def extra_repr(self) -> str:
        return f"skip={self.skip}"


class ClassToken(nn.Module):
    """The first token: the paper's y = LN(z_L^0), equation 4."""

    def forward(self, tokens: Float[Tensor, "B N D"]) -> Float[Tensor, "B D"]:
        return tokens[:, 0]
