"""Departures from the paper's attention: sparse patterns, norms, positions inside, temperature.

Each is a part of its own; `models/parts.py` chooses them. All of them may be combined.
"""

from functools import partial

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from vitlab.nn.attention import Grid, SelfAttention, attention_weights, dot_product_attention
from vitlab.nn.pattern import Pattern, attend_in_groups, pattern_groups, pattern_mask
from vitlab.nn.pos_embed import OffsetBias, relative_scores
from vitlab.nn.rope import MixedRope, Places, Rope


class VariantAttention(SelfAttention):
    """Self-attention with the layers of a plain one and parts of its own."""

    def __init__(
        self,
        plain: SelfAttention,
        *,
        prefix: int = 0,
        pattern: Pattern | None = None,
        norms: tuple[nn.Module, nn.Module] | None = None,
        norm: nn.Module | None = None,
        rope: Rope | MixedRope | None = None,
        temperature: nn.Parameter | None = None,
        offsets: nn.Parameter | None = None,
        offset_bias: OffsetBias | None = None,
        qv_bias: nn.Parameter | None = None,
    ) -> None:
        """`prefix` tokens precede the patches.

        Args:
            pattern: keys that each query attends to.
            norms: norm of the queries and of the keys of a head.
            norm: norm of the concatenated heads, before their projection.
            temperature: logarithm of each head's `scale`, from `log_temperature`.
            offsets: one embedding for every offset between two patches, in raster order.
            offset_bias: one number for every head and offset, in rows and columns.
            qv_bias: bias [2, A, K] of queries and values, where keys have none.
        """
        nn.Module.__init__(self)
        self.heads = plain.heads
        self.attention_dropout = plain.attention_dropout
        self.prefix = prefix
        self.pattern = pattern
        self.rope = rope
        self.offset_bias = offset_bias
        self.qkv = plain.qkv
        self.q_norm, self.k_norm = (nn.Identity(), nn.Identity()) if norms is None else norms
        self.norm = norm
        self.proj = plain.proj
        self.dropout = plain.dropout
        self.temperature = temperature
        self.offsets = offsets
        self.qv_bias = qv_bias
        # A learned temperature is multiplied into the queries.
        self.scale = None if temperature is None else 1.0

    def project(
        self,
        x: Float[Tensor, "B N D"],
        grid: Grid,
        read: int | None = None,
        places: Places | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values [B, A, N, K]; with `read`, there may be fewer queries.

        `places` gives the positions of patches that left the grid, for rotary positions.
        """
        whole = (self.pattern, self.rope, self.offsets)  # their queries are not cut short
        q, k, v = super().project(x, grid, read if all(part is None for part in whole) else None)
        if self.qv_bias is not None:
            q, v = (part + bias[:, None] for part, bias in zip((q, v), self.qv_bias, strict=True))
        q, k = self.q_norm(q), self.k_norm(k)
        if self.rope is not None:
            q, k = (self.rope(part, grid, self.prefix, places) for part in (q, k))
        return self._apply_temperature(q), k, v

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, grid: Grid, read: int | None = None
    ) -> Float[Tensor, "B A M K"]:
        """Attention output, in groups of queries that share their keys where that is cheaper."""
        dropout = self.attention_dropout if self.training else 0.0
        attend = partial(dot_product_attention, scale=self.scale, dropout=dropout)
        groups = None
        if self.pattern is not None and self.offsets is None and self.offset_bias is None:
            groups = pattern_groups(self.pattern, grid, self.prefix, q.device)
        if groups is None:
            y = attend(q, k, v, self._mask(q, grid))
        else:
            y = attend_in_groups(attend, q, k, v, groups, self.prefix)
        return y if read is None else y[:, :, :read]

    def project_out(self, y: Float[Tensor, "B A M K"]) -> Float[Tensor, "B M D"]:
        """Concatenate the heads, normalise them, and project them to the width of the tokens."""
        joined = rearrange(y, "b a m k -> b m (a k)")
        joined = self.proj(joined if self.norm is None else self.norm(joined))
        return self.dropout(joined) if self.training else joined

    def weights_of(self, q: Tensor, k: Tensor, grid: Grid) -> Float[Tensor, "B A M N"]:
        """Softmax weights that `attend` applies to the values for these queries and keys."""
        return attention_weights(q, k, self._mask(q, grid), scale=self.scale)

    def _apply_temperature(self, q: Tensor) -> Tensor:
        return q if self.temperature is None else q * self.temperature.exp()[:, None, None]

    def _mask(self, q: Tensor, grid: Grid) -> Tensor | None:
        """Pattern as a boolean mask; with relative positions, their scores where it is True."""
        mask = None
        if self.pattern is not None:
            mask = pattern_mask(self.pattern, grid, self.prefix, q.device)
        if self.offsets is not None:
            bias = relative_scores(q, self.offsets, grid, self.prefix, self.scale)
        elif self.offset_bias is not None:
            # For the requested queries only, in the precision in which they are computed.
            bias = self.offset_bias(grid, self.prefix)[None, :, : q.shape[2]].to(q.dtype)
        else:
            return mask
        return bias if mask is None else bias.masked_fill(~mask, float("-inf"))


def sparse(attention: SelfAttention) -> bool:
    """True if some tokens do not attend to all others."""
    return isinstance(attention, VariantAttention) and attention.pattern is not None


def relative(attention: SelfAttention) -> bool:
    """True if the offset between two patches changes their score."""
    if not isinstance(attention, VariantAttention):
        return False
    return attention.offsets is not None or attention.offset_bias is not None


def log_temperature(heads: int, head_width: int) -> nn.Parameter:
    """Learned temperature of LSA (arXiv:2112.13492), which starts at the paper's scale."""
    return nn.Parameter(torch.tensor(head_width**-0.5).log().repeat(heads))
