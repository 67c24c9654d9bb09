"""Scaled dot-product and multi-head attention (arXiv:1706.03762; arXiv:2010.11929, appendix A)."""

from functools import partial

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor, nn

from vitlab.machine.cores import Use, attention_form, only_products
from vitlab.nn.init import init_attention, position_table
from vitlab.nn.merge import proportional
from vitlab.nn.pattern import Grid, Pattern, attend_in_groups, pattern_groups, pattern_mask
from vitlab.nn.pos_embed import OffsetBias, Places, Rope, offset_index
from vitlab.nn.resize import resize_offsets

Mask = Bool[Tensor, "*#mask M N"] | Float[Tensor, "*#mask M N"]


def dot_product_attention(
    q: Float[Tensor, "*batch M K"],
    k: Float[Tensor, "*batch N K"],
    v: Float[Tensor, "*batch N V"],
    mask: Mask | None = None,
    *,
    scale: float | None = None,
    dropout: float = 0.0,
) -> Float[Tensor, "*batch M V"]:
    """softmax(q kᵀ scale + mask) v, for any number of queries and any width of the values.

    A boolean mask is True where a query may attend; a float mask is added to the scores.
    `scale` is 1 / sqrt(K) unless given.
    """
    tokens = max(q.shape[-2], k.shape[-2])
    learning = torch.is_grad_enabled() and q.requires_grad
    use: Use = "training" if learning else "inference"
    if attention_form(q.device.type, tokens, use) == "fused":
        return F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, dropout_p=dropout, scale=scale
        )
    weights = attention_weights(q, k, mask, scale=scale)
    if dropout:
        weights = F.dropout(weights, dropout)
    return weights @ v


def attention_weights(
    q: Float[Tensor, "*batch M K"],
    k: Float[Tensor, "*batch N K"],
    mask: Mask | None = None,
    *,
    scale: float | None = None,
) -> Float[Tensor, "*batch M N"]:
    """softmax(q kᵀ scale + mask): each row sums to one, or is zero where every key is masked."""
    scores = (q * (q.shape[-1] ** -0.5 if scale is None else scale)) @ k.mT
    if mask is None:
        return scores.softmax(dim=-1)
    if mask.dtype != torch.bool:
        return (scores + mask).softmax(dim=-1)
    weights = scores.masked_fill(~mask, float("-inf")).softmax(dim=-1)
    # A query whose keys are all masked has an empty sum, as in the fused kernels, not 0 / 0.
    return weights.masked_fill(~mask.any(dim=-1, keepdim=True), 0.0)


class MultiHeadAttention(nn.Module):
    """Attention of `heads` heads between two sequences, or of one with itself."""

    def __init__(
        self,
        width: int,
        *,
        heads: int,
        key_width: int | None = None,
        value_width: int | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if key_width is None and width % heads:
            raise ValueError(f"width {width} does not split into {heads} heads")
        key_width = width // heads if key_width is None else key_width
        value_width = key_width if value_width is None else value_width
        self.heads = heads
        self.dropout = dropout
        self.q = nn.Linear(width, heads * key_width)
        self.k = nn.Linear(width, heads * key_width)
        self.v = nn.Linear(width, heads * value_width)
        self.out = nn.Linear(heads * value_width, width)
        for layer in (self.q, self.k, self.v, self.out):
            init_attention(layer)

    def forward(
        self,
        queries: Float[Tensor, "B M D"],
        tokens: Float[Tensor, "B N D"] | None = None,
        mask: Mask | None = None,
    ) -> Float[Tensor, "B M D"]:
        q, k, v = self.project(queries, queries if tokens is None else tokens)
        return self.join(self.mix(q, k, v, mask))

    def project(
        self, queries: Float[Tensor, "B M D"], tokens: Float[Tensor, "B N D"]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries of one sequence, keys and values of another, each [B, A, M or N, K or V]."""
        q, k, v = (
            rearrange(part, "b n (a k) -> b a n k", a=self.heads)
            for part in (self.q(queries), self.k(tokens), self.v(tokens))
        )
        return q, k, v

    def mix(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Mask | None = None
    ) -> Float[Tensor, "B A M V"]:
        """Attention output: values weighted by each query's attention."""
        return dot_product_attention(q, k, v, mask, dropout=self.dropout if self.training else 0.0)

    def join(self, y: Float[Tensor, "B A M V"]) -> Float[Tensor, "B M D"]:
        """Concatenate the heads and project them to the width of the tokens."""
        return self.out(rearrange(y, "b a m v -> b m (a v)"))

    def weights(
        self,
        queries: Float[Tensor, "B M D"],
        tokens: Float[Tensor, "B N D"] | None = None,
        mask: Mask | None = None,
    ) -> Float[Tensor, "B A M N"]:
        """Attention weights of each query over the tokens, per head."""
        tokens = queries if tokens is None else tokens
        q, k = (
            rearrange(part, "b n (a k) -> b a n k", a=self.heads)
            for part in (self.q(queries), self.k(tokens))
        )
        return attention_weights(q, k, mask)


class SelfAttention(nn.Module):
    """Self-attention of an encoder block, full or sparse, optionally with positions inside."""

    def __init__(
        self,
        width: int,
        *,
        heads: int,
        head_width: int,
        prefix: int = 0,
        qkv_bias: bool = True,
        proj: bool = True,
        proj_bias: bool = True,
        qk_norm: bool = False,
        norm_eps: float = 1e-6,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        pattern: Pattern | None = None,
        learned_temperature: bool = False,
        rope: Rope | None = None,
        relative_to: Grid | None = None,
        offset_bias: OffsetBias | None = None,
    ) -> None:
        """`relative_to` is the grid whose offsets get an embedding each, for relative positions."""
        super().__init__()
        inner = heads * head_width
        self.heads = heads
        self.prefix = prefix
        self.pattern = pattern
        self.rope = rope
        self.offset_bias = offset_bias
        self.attention_dropout = attention_dropout
        self.qkv = nn.Linear(width, 3 * inner, bias=qkv_bias)
        self.q_norm = nn.LayerNorm(head_width, eps=norm_eps) if qk_norm else nn.Identity()
        self.k_norm = nn.LayerNorm(head_width, eps=norm_eps) if qk_norm else nn.Identity()
        self.proj = nn.Linear(inner, width, bias=proj_bias) if proj else nn.Identity()
        self.dropout = nn.Dropout(dropout)
        init_attention(self.qkv, matrices=3)
        if isinstance(self.proj, nn.Linear):
            init_attention(self.proj)
        if learned_temperature:
            log_scale = torch.tensor(head_width**-0.5).log()
            self.temperature = nn.Parameter(log_scale.repeat(heads))
        else:
            self.register_parameter("temperature", None)
        if relative_to is not None:
            patches = relative_to[0] * relative_to[1]
            self.offsets = position_table(2 * patches - 1, head_width)
        else:
            self.register_parameter("offsets", None)

    def forward(
        self, x: Float[Tensor, "B N D"], grid: Grid, read: int | None = None
    ) -> Float[Tensor, "B M D"]:
        """Attention output of every token, or of the first `read` tokens only."""
        q, k, v = self.project(x, grid, read)
        return self.join(self.mix(q, k, v, grid, read))

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
        if read is not None and self._queries_apart:
            return self._project_read(x, read)
        return self._project(x, grid, places)

    def mix(
        self, q: Tensor, k: Tensor, v: Tensor, grid: Grid, read: int | None = None
    ) -> Float[Tensor, "B A M K"]:
        """Attention output: values weighted by each query's attention."""
        y = self._attend(q, k, v, grid)
        return y if read is None else y[:, :, :read]

    def mix_sized(
        self, q: Tensor, k: Tensor, v: Tensor, sizes: Float[Tensor, "B N"] | None
    ) -> Float[Tensor, "B A M K"]:
        """Same as `mix` without a pattern, with each token weighted by its size in patches."""
        mask = proportional(sizes, q.shape[2])
        return dot_product_attention(q, k, v, mask, scale=self._scale)

    def join(self, y: Float[Tensor, "B A M K"]) -> Float[Tensor, "B M D"]:
        """Concatenate the heads and project them to the width of the tokens."""
        joined = self.proj(rearrange(y, "b a m k -> b m (a k)"))
        return self.dropout(joined) if self.training else joined

    def weights(self, x: Float[Tensor, "B N D"], grid: Grid) -> Float[Tensor, "B A N N"]:
        """Softmax weights, zero where the pattern masks a key; `forward` never computes them."""
        q, k, _ = self._project(x, grid)
        return self.weights_of(q, k, grid)

    def weights_of(self, q: Tensor, k: Tensor, grid: Grid) -> Float[Tensor, "B A M N"]:
        """Softmax weights that `mix` applies to the values for these queries and keys."""
        return attention_weights(q, k, self._mask(q, grid), scale=self._scale)

    @property
    def _scale(self) -> float | None:
        # A learned temperature is multiplied into the queries.
        return None if self.temperature is None else 1.0

    def _project(
        self, x: Tensor, grid: Grid, places: Places | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = self._parts(x, 0, 3)
        q, k = self.q_norm(q), self.k_norm(k)
        if self.rope is not None:
            q, k = (self.rope(part, grid, self.prefix, places) for part in (q, k))
        return self._warmed(q), k, v

    def _project_read(self, x: Tensor, read: int) -> tuple[Tensor, Tensor, Tensor]:
        """Same as `_project`, with the queries of the first `read` tokens only."""
        (q,) = self._parts(x[:, :read], 0, 1)
        k, v = self._parts(x, 1, 3)
        return self._warmed(self.q_norm(q)), self.k_norm(k), v

    def _parts(self, x: Tensor, start: int, stop: int) -> tuple[Tensor, ...]:
        """Queries (0), keys (1) and values (2), from part `start` to before `stop`."""
        count = stop - start
        if count > 1 and only_products() and type(self.qkv) is nn.Linear:
            # Other runtimes copy the parts out of one fused product; three products need no copy.
            return tuple(self._parts(x, part, part + 1)[0] for part in range(start, stop))
        if count == 3:
            return self._in_heads(self.qkv(x), count)
        inner = len(self.qkv.weight) // 3
        rows = slice(start * inner, stop * inner)
        bias = None if self.qkv.bias is None else self.qkv.bias[rows]
        return self._in_heads(F.linear(x, self.qkv.weight[rows], bias), count)

    def _in_heads(self, x: Float[Tensor, "B N P"], parts: int) -> tuple[Tensor, ...]:
        if parts == 1:
            return (rearrange(x, "b n (a k) -> b a n k", a=self.heads),)
        return rearrange(x, "b n (p a k) -> p b a n k", p=parts, a=self.heads).unbind(0)

    def _warmed(self, q: Tensor) -> Tensor:
        return q if self.temperature is None else q * self.temperature.exp()[:, None, None]

    @property
    def _queries_apart(self) -> bool:
        """True if the query of one token can be computed without those of the others."""
        elsewhere = (self.pattern, self.rope, self.offsets)
        return type(self.qkv) is nn.Linear and all(part is None for part in elsewhere)

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, grid: Grid) -> Tensor:
        dropout = self.attention_dropout if self.training else 0.0
        attend = partial(dot_product_attention, scale=self._scale, dropout=dropout)
        biased = self.offsets is not None or self.offset_bias is not None
        if self.pattern is not None and not biased:
            groups = pattern_groups(self.pattern, grid, self.prefix, q.device)
            if groups is not None:
                return attend_in_groups(attend, q, k, v, groups, self.prefix)
        return attend(q, k, v, self._mask(q, grid))

    def _mask(self, q: Tensor, grid: Grid) -> Tensor | None:
        mask = None
        if self.pattern is not None:
            mask = pattern_mask(self.pattern, grid, self.prefix, q.device)
        if self.offsets is not None:
            bias = self._relative_scores(q, grid)
        elif self.offset_bias is not None:
            # For the requested queries only, in the precision in which they are computed.
            bias = self.offset_bias(grid, self.prefix)[None, :, : q.shape[2]].to(q.dtype)
        else:
            return mask
        return bias if mask is None else bias.masked_fill(~mask, float("-inf"))

    def _relative_scores(self, q: Tensor, grid: Grid) -> Float[Tensor, "B A N N"]:
        """Query · embedding of the offset (appendix D.4), scaled as the content scores are."""
        patches = grid[0] * grid[1]
        index = offset_index(patches, self.prefix, q.device)  # [N, N]
        scale = q.shape[-1] ** -0.5 if self._scale is None else self._scale
        by_offset = (q * scale) @ resize_offsets(self.offsets, patches).T  # [B, A, N, offsets]
        return by_offset.gather(-1, index.expand(*q.shape[:2], -1, -1))
