"""From many tokens to fewer: class token, averages, attention pooling, and a coarser grid."""

import torch
import torch.nn.functional as F
from einops import reduce
from jaxtyping import Float
from torch import Tensor, nn

from vitlab.nn.attention import MultiHeadAttention
from vitlab.nn.merge import proportional
from vitlab.nn.mlp import Gelu, Mlp

# A pooling has `forward(tokens)`, and `weighted(tokens, sizes)` for tokens that stand for several.


def halve(
    tokens: Float[Tensor, "B N D"], grid: tuple[int, int], prefix: int
) -> Float[Tensor, "B M D"]:
    """Each 2x2 patches of an even grid averaged into one; the first `prefix` tokens stay."""
    patches = reduce(
        tokens[:, prefix:], "b (h y w x) d -> b (h w) d", "mean", h=grid[0] // 2, y=2, x=2
    )
    return torch.cat([tokens[:, :prefix], patches], dim=1) if prefix else patches


class AttentionPool(nn.Module):
    """MAP head of big_vision: a learned probe attends to the tokens, an MLP follows."""

    def __init__(
        self,
        width: int,
        *,
        heads: int,
        mlp_width: int,
        skip: int = 0,
        gelu: Gelu = "erf",
        norm_eps: float = 1e-6,
    ) -> None:
        """The probe does not attend to the first `skip` tokens."""
        super().__init__()
        self.skip = skip
        self.probe = nn.Parameter(torch.empty(1, 1, width))
        self.attention = MultiHeadAttention(width, heads=heads)
        self.norm = nn.LayerNorm(width, eps=norm_eps)
        self.mlp = Mlp(width, mlp_width, gelu=gelu)
        nn.init.xavier_uniform_(self.probe.detach()[0])

    def forward(self, tokens: Float[Tensor, "B N D"]) -> Float[Tensor, "B D"]:
        return self.weighted(tokens, None)

    def weighted(
        self, tokens: Float[Tensor, "B N D"], sizes: Float[Tensor, "B N"] | None
    ) -> Float[Tensor, "B D"]:
        """Pooled vector of each image; a token counts as many times as its size."""
        mask = None if sizes is None else proportional(sizes[:, self.skip :], 1)
        read = tokens[:, self.skip :]
        return self.finish(self.attention(self.probes(tokens.shape[0]), read, mask))

    def probes(self, images: int | torch.SymInt) -> Float[Tensor, "B 1 D"]:
        """Learned queries, repeated for each image."""
        return self.probe.expand(images, -1, -1)

    def finish(self, x: Float[Tensor, "B 1 D"]) -> Float[Tensor, "B D"]:
        """Pooled vector of each image, from the attention output."""
        return (x + self.mlp(self.norm(x)))[:, 0]


class MeanPool(nn.Module):
    """The average of the tokens behind the first `skip`; with `cls`, behind the class token."""

    def __init__(self, skip: int, *, cls: bool = False) -> None:
        super().__init__()
        self.skip = skip
        self.cls = cls

    def forward(self, tokens: Float[Tensor, "B N D"]) -> Float[Tensor, "B _"]:
        return self._joined(tokens, tokens[:, self.skip :].mean(dim=1))

    def weighted(
        self, tokens: Float[Tensor, "B N D"], sizes: Float[Tensor, "B N"]
    ) -> Float[Tensor, "B _"]:
        """Average in which a token counts as many times as its size."""
        weights = sizes[:, self.skip :, None]
        mean = (tokens[:, self.skip :] * weights).sum(dim=1) / weights.sum(dim=1)
        return self._joined(tokens, mean)

    def _joined(self, tokens: Tensor, mean: Tensor) -> Tensor:
        return torch.cat([tokens[:, 0], mean], dim=1) if self.cls else mean

    def extra_repr(self) -> str:
        return f"skip={self.skip}"


class ClassToken(nn.Module):
    """The first token: the paper's y = LN(z_L^0), equation 4; of `count` tokens, all of them."""

    def __init__(self, count: int = 1) -> None:
        super().__init__()
        self.count = count

    def forward(self, tokens: Float[Tensor, "B N D"]) -> Float[Tensor, "B _"]:
        return tokens[:, 0] if self.count == 1 else tokens[:, : self.count].flatten(1)

    def weighted(self, tokens: Float[Tensor, "B N D"], sizes: Tensor) -> Float[Tensor, "B _"]:
        """Tokens before the patches, which are never merged."""
        return self(tokens)


class AveragedHeads(nn.Module):
    """Average of one linear layer for each of several concatenated tokens (arXiv:2012.12877)."""

    def __init__(self, width: int, classes: int, *, tokens: int = 2) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(classes, tokens, width))
        self.bias = nn.Parameter(torch.empty(classes, tokens))

    def forward(self, pooled: Float[Tensor, "B P"]) -> Float[Tensor, "B classes"]:
        tokens = self.weight.shape[1]
        return F.linear(pooled, self.weight.flatten(1), self.bias.sum(dim=1)) / tokens
