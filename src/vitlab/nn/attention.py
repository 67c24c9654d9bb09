"""Self-attention of the encoder, and attention between any two sequences.

arXiv:1706.03762; arXiv:2010.11929, appendix A. `attention_variants` has what the paper leaves out.
"""

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor, nn

from vitlab.machine.device import Use, attention_form, only_products
from vitlab.nn.draws import Dropout
from vitlab.nn.draws import dropout as drop
from vitlab.nn.init import init_attention

Grid = tuple[int, int]
Mask = Bool[Tensor, "*#mask M N"] | Float[Tensor, "*#mask M N"]


class SelfAttention(nn.Module):
    """Self-attention over tokens. The grid of the patches only matters in the variants."""

    scale: float | None = None
    """Factor of the products of queries and keys; None: 1 / sqrt(head width)."""

    def __init__(
        self,
        width: int,
        *,
        heads: int,
        head_width: int,
        qkv_bias: bool = True,
        proj: bool = True,
        proj_bias: bool = True,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.heads = heads
        self.attention_dropout = attention_dropout
        self.qkv = nn.Linear(width, 3 * heads * head_width, bias=qkv_bias)
        self.proj = nn.Linear(heads * head_width, width, bias=proj_bias) if proj else nn.Identity()
        self.dropout = Dropout(dropout)
        init_attention(self.qkv, matrices=3)
        if isinstance(self.proj, nn.Linear):
            init_attention(self.proj)

    def forward(
        self, x: Float[Tensor, "B N D"], grid: Grid, read: int | None = None
    ) -> Float[Tensor, "B M D"]:
        """Attention output of every token, or of the first `read` tokens only."""
        q, k, v = self.project(x, grid, read)
        return self.project_out(self.attend(q, k, v, grid, read))

    def project(
        self, x: Float[Tensor, "B N D"], grid: Grid, read: int | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values [B, A, N, K]; with `read`, there may be fewer queries."""
        if read is None or type(self.qkv) is not nn.Linear:
            q, k, v = self._parts(x, 0, 3)
        else:
            (q,), (k, v) = self._parts(x[:, :read], 0, 1), self._parts(x, 1, 3)
        return q, k, v

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, grid: Grid, read: int | None = None
    ) -> Float[Tensor, "B A M K"]:
        """Attention output: values weighted by each query's attention."""
        dropout = self.attention_dropout if self.training else 0.0
        y = dot_product_attention(q, k, v, dropout=dropout)
        return y if read is None else y[:, :, :read]

    def project_out(self, y: Float[Tensor, "B A M K"]) -> Float[Tensor, "B M D"]:
        """Concatenate the heads and project them to the width of the tokens."""
        joined = self.proj(rearrange(y, "b a m k -> b m (a k)"))
        return self.dropout(joined) if self.training else joined

    def weights(self, x: Float[Tensor, "B N D"], grid: Grid) -> Float[Tensor, "B A N N"]:
        """Softmax weights, zero where a key is masked; `forward` never computes them."""
        q, k, _ = self.project(x, grid)
        return self.weights_of(q, k, grid)

    def weights_of(self, q: Tensor, k: Tensor, grid: Grid) -> Float[Tensor, "B A M N"]:
        """Softmax weights that `attend` applies to the values for these queries and keys."""
        return attention_weights(q, k)

    def _parts(self, x: Tensor, start: int, stop: int) -> tuple[Tensor, ...]:
        """Queries (0), keys (1) and values (2), from part `start` to before `stop`."""
        count = stop - start
        if count > 1 and only_products() and type(self.qkv) is nn.Linear:
            # Other runtimes copy the parts out of one fused product; three products need no copy.
            return tuple(self._parts(x, part, part + 1)[0] for part in range(start, stop))
        if count == 3:
            fused = self.qkv(x)
        else:
            inner = len(self.qkv.weight) // 3
            rows = slice(start * inner, stop * inner)
            bias = None if self.qkv.bias is None else self.qkv.bias[rows]
            fused = F.linear(x, self.qkv.weight[rows], bias)
        if count == 1:
            return (rearrange(fused, "b n (a k) -> b a n k", a=self.heads),)
        return rearrange(fused, "b n (p a k) -> p b a n k", p=count, a=self.heads).unbind(0)


class CausalAttention(SelfAttention):
    """Self-attention of each token to itself and the tokens before it."""

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, grid: Grid, read: int | None = None
    ) -> Float[Tensor, "B A M K"]:
        """Attention output: values weighted by each query's attention."""
        dropout = self.attention_dropout if self.training else 0.0
        return dot_product_attention(q, k, v, _causal(q, k), dropout=dropout)

    def weights_of(self, q: Tensor, k: Tensor, grid: Grid) -> Float[Tensor, "B A M N"]:
        """Softmax weights that `attend` applies to the values for these queries and keys."""
        return attention_weights(q, k, _causal(q, k))


def _causal(q: Tensor, k: Tensor) -> Bool[Tensor, "M N"]:
    """Mask of the keys that are not behind their query, for the first M of N tokens."""
    return torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril()


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
    # The fused kernel draws its dropout by itself, in an order that no process knows.
    if not dropout and attention_form(q.device.type, tokens, use) == "fused":
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
    return drop(attention_weights(q, k, mask, scale=scale), dropout) @ v


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
        return self.project_out(self.attend(q, k, v, mask))

    def project(
        self, queries: Float[Tensor, "B M D"], tokens: Float[Tensor, "B N D"]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries of one sequence, keys and values of another, each [B, A, M or N, K or V]."""
        q, k, v = (
            rearrange(part, "b n (a k) -> b a n k", a=self.heads)
            for part in (self.q(queries), self.k(tokens), self.v(tokens))
        )
        return q, k, v

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Mask | None = None
    ) -> Float[Tensor, "B A M V"]:
        """Attention output: values weighted by each query's attention."""
        return dot_product_attention(q, k, v, mask, dropout=self.dropout if self.training else 0.0)

    def project_out(self, y: Float[Tensor, "B A M V"]) -> Float[Tensor, "B M D"]:
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
