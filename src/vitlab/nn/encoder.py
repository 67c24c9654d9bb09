"""The encoder: blocks of attention and MLP on a residual path (arXiv:2010.11929, eq. 2-4)."""

from collections.abc import Callable, Sequence
from typing import Literal, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vitlab.nn.attention import SelfAttention
from vitlab.nn.draws import per_image
from vitlab.nn.pool import halve
from vitlab.nn.pos_embed import Added, add_position

# Stochastic depth, arXiv:1603.09382: a whole residual branch is dropped for some images.


class DropPath(nn.Module):
    """Zero the branch of an image with probability `rate` in training, and scale up the rest."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: Float[Tensor, "B N D"]) -> Float[Tensor, "B N D"]:
        if not self.training or self.rate == 0.0:
            return x
        keep = 1.0 - self.rate
        kept = per_image(len(x), lambda count: x.new_empty(count, 1, 1).bernoulli_(keep))
        return x * kept.div_(keep)

    def extra_repr(self) -> str:
        return f"rate={self.rate}"


Grid = tuple[int, int]


NormKind = Literal["layer", "rms"]
"""LayerNorm (arXiv:1607.06450) or RMSNorm (arXiv:1910.07467)."""


def make_norm(
    width: int, *, kind: NormKind = "layer", eps: float = 1e-6, bias: bool = True
) -> nn.Module:
    """Normalisation of vectors of `width`; an RMSNorm neither centres nor shifts them."""
    if kind == "rms":
        return nn.RMSNorm(width, eps=eps)
    return nn.LayerNorm(width, eps=eps, bias=bias)


class LayerScale(nn.Module):
    """A learned factor per channel on a residual branch, arXiv:2103.17239."""

    def __init__(self, width: int, *, init: float) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.full((width,), init))

    def forward(self, x: Float[Tensor, "B N D"]) -> Float[Tensor, "B N D"]:
        return x * self.gamma


Placement = Literal["pre", "post", "res_post"]


class EncoderBlock(nn.Module):
    """Attention, then MLP, each added to its input.

    LayerNorm comes before (the paper), after the sum (`post`), or after the branch (`res_post`).
    With `branch_norm`, another LayerNorm on each branch, whose factors start at that value.
    """

    def __init__(
        self,
        attention: nn.Module,
        mlp: nn.Module,
        width: int,
        *,
        norm: Placement = "pre",
        norm_kind: NormKind = "layer",
        norm_eps: float = 1e-6,
        norm_bias: bool = True,
        layer_scale: float | None = None,
        branch_norm: float | None = None,
        drop_path: float = 0.0,
    ) -> None:
        super().__init__()
        self.placement: Placement = norm
        self.norm1 = make_norm(width, kind=norm_kind, eps=norm_eps, bias=norm_bias)
        self.attention = attention
        self.norm2 = make_norm(width, kind=norm_kind, eps=norm_eps, bias=norm_bias)
        self.mlp = mlp
        self.scale1: nn.Module | None = None
        self.scale2: nn.Module | None = None
        if layer_scale is not None:
            self.scale1, self.scale2 = (LayerScale(width, init=layer_scale) for _ in range(2))
        elif branch_norm is not None:
            self.scale1, self.scale2 = (
                nn.LayerNorm(width, eps=norm_eps, bias=False) for _ in range(2)
            )
            for scale in (self.scale1, self.scale2):
                nn.init.constant_(scale.weight, branch_norm)
        self.drop_path = DropPath(drop_path)

    def forward(
        self, x: Float[Tensor, "B N D"], grid: Grid, read: int | None = None
    ) -> Float[Tensor, "B M D"]:
        """Output of every token, or of the first `read` tokens only."""
        y = self._attend(self.normed(x), grid, read)
        return self.finish(x if read is None else x[:, :read], y)

    def normed(self, x: Float[Tensor, "B N D"]) -> Float[Tensor, "B N D"]:
        """Input of the attention layer for the block input `x`."""
        return self.norm1(x) if self.placement == "pre" else x

    def finish(
        self, x: Float[Tensor, "B N D"], y: Float[Tensor, "B N D"]
    ) -> Float[Tensor, "B N D"]:
        """Output of the block, from its input and its attention output."""
        return self.add_mlp(self.add_attention(x, y))

    def add_attention(
        self, x: Float[Tensor, "B N D"], y: Float[Tensor, "B N D"]
    ) -> Float[Tensor, "B N D"]:
        """Input of the MLP half of the block, from the block's input and its attention output."""
        if self.placement == "res_post":
            return x + self._branch(self.norm1(y), self.scale1)
        x = x + self._branch(y, self.scale1)
        return x if self.placement == "pre" else self.norm1(x)

    def add_mlp(self, x: Float[Tensor, "B N D"]) -> Float[Tensor, "B N D"]:
        """Output of the MLP half of the block."""
        if self.placement == "pre":
            return x + self._branch(self.mlp(self.norm2(x)), self.scale2)
        if self.placement == "res_post":
            return x + self._branch(self.norm2(self.mlp(x)), self.scale2)
        return self.norm2(x + self._branch(self.mlp(x), self.scale2))

    def _attend(
        self, x: Float[Tensor, "B N D"], grid: Grid, read: int | None
    ) -> Float[Tensor, "B M D"]:
        if read is None:
            return self.attention(x, grid)
        if isinstance(self.attention, SelfAttention):
            return self.attention(x, grid, read)
        return self.attention(x, grid)[:, :read]  # a custom attention, which computes all tokens

    def _branch(self, y: Float[Tensor, "B N D"], scale: nn.Module | None) -> Float[Tensor, "B N D"]:
        """Contribution of a branch to the residual path."""
        y = y if scale is None else scale(y)
        return self.drop_path(y) if self.training else y

    def attention_weights(self, x: Float[Tensor, "B N D"], grid: Grid) -> Float[Tensor, "B A N N"]:
        """Attention weights of this block for the input `x`."""
        weights = cast(Callable[[Tensor, Grid], Tensor], self.attention.weights)
        return weights(self.normed(x), grid)


class Encoder(nn.Module):
    """A stack of blocks and the last LayerNorm.

    Every method takes the grid of the tokens that enter the encoder.
    """

    def __init__(
        self,
        blocks: list[EncoderBlock],
        norm: nn.Module,
        *,
        pool_after: int | None = None,
        prefix: int = 0,
    ) -> None:
        """After `pool_after` blocks, each 2x2 patches behind the `prefix` are averaged into one."""
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.norm = norm
        self.pool_after = pool_after
        self.prefix = prefix
        self.recompute = False
        """Keep only the input of each block, and recompute the rest in the backward pass."""

    def forward(
        self,
        x: Float[Tensor, "B N D"],
        grid: Grid,
        positions: Sequence[Added] = (),
        read: int | None = None,
    ) -> Float[Tensor, "B M D"]:
        """`positions`, if any, are added to the input of each block.

        With `read`, only the first `read` tokens are returned; the last block computes no others.
        """
        last = len(self.blocks) - 1
        for layer in range(len(self.blocks)):
            x = self.step(x, grid, positions, layer, read if layer == last else None)
        return self.norm(x)

    def step(
        self,
        x: Float[Tensor, "B N D"],
        grid: Grid,
        positions: Sequence[Added],
        layer: int,
        read: int | None = None,
    ) -> Float[Tensor, "B M D"]:
        """Output of one block, for every token or for the first `read` tokens."""
        if self.recompute and torch.is_grad_enabled():
            # Random states are restored too, so that dropout drops the same values again.
            return checkpoint(self._step, x, grid, positions, layer, read, use_reentrant=False)
        return self._step(x, grid, positions, layer, read)

    def _step(
        self, x: Tensor, grid: Grid, positions: Sequence[Added], layer: int, read: int | None
    ) -> Tensor:
        x = self.enter(x, grid, positions, layer)
        return self.blocks[layer](x, self.grid_at(layer, grid), read)

    def enter(self, x: Tensor, grid: Grid, positions: Sequence[Added], layer: int) -> Tensor:
        """Input of a block, from the output of the previous one."""
        if layer == self.pool_after:
            x = halve(x, grid, self.prefix)
        return add_position(x, positions[layer], self.grid_at(layer, grid)) if positions else x

    def grid_at(self, layer: int, grid: Grid) -> Grid:
        """Grid of the patches at the input and output of one block."""
        pooled = self.pool_after is not None and layer >= self.pool_after
        return (grid[0] // 2, grid[1] // 2) if pooled else grid

    def attention_weights(
        self,
        x: Float[Tensor, "B N D"],
        grid: Grid,
        positions: Sequence[Added],
        layer: int,
    ) -> Float[Tensor, "B A M M"]:
        """Attention weights of one block for the encoder input `x`."""
        block = self.blocks[layer]
        assert isinstance(block, EncoderBlock)
        x = self.enter(x, grid, positions, layer)
        return block.attention_weights(x, self.grid_at(layer, grid))
