"""A Vision Transformer with token merging: the same weights, fewer tokens, less time.

ToMe, arXiv:2210.09461: between the attention and the MLP of every block, the most similar patches
are merged into one token. The tokens before the patches are never merged.
"""

from collections.abc import Sequence
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitlab.errors import InputError
from vitlab.models.vit import VisionTransformer
from vitlab.nn.attention import SelfAttention, dot_product_attention
from vitlab.nn.attention_variants import VariantAttention, relative, sparse
from vitlab.nn.encoder import EncoderBlock
from vitlab.nn.merge import Sized, proportional
from vitlab.nn.pos_embed import Added, Conditional

Grid = tuple[int, int]


class MergingTransformer(nn.Module):
    """Model with up to `merge_tokens` fewer tokens after each block; created by `merging`."""

    def __init__(self, model: VisionTransformer, merge_tokens: int) -> None:
        super().__init__()
        self.config = model.config
        self.source = model.source
        self.merge_tokens = merge_tokens
        self.model = model
        self.train(model.training)

    def forward(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B classes"]:
        """Logits, from the remaining tokens."""
        x, grid, positions = self.model.embed(images)
        tokens = Sized(x, self.config.prefix)
        for layer in range(self.config.depth):
            tokens = self._block(tokens, grid, positions, layer)
        tokens = tokens.replace(self.model.encoder.norm(tokens.tokens))
        return self.model.classify(self.model.pooled_norm(self._pool(tokens)))

    def _block(self, now: Sized, grid: Grid, positions: Sequence[Added], layer: int) -> Sized:
        """Attention, merging, then the MLP; the last block computes only what the head reads."""
        encoder = self.model.encoder
        block = cast(EncoderBlock, encoder.blocks[layer])
        attention = cast(SelfAttention, block.attention)
        now, grid = self._enter(now, grid, positions, layer), encoder.grid_at(layer, grid)
        read = self.model.read if layer == self.config.depth - 1 else None
        q, k, v = self._project(now, block.normed(now.tokens), attention, grid, read)
        q = q if read is None else q[:, :, :read]
        mask = proportional(now.all_sizes(), q.shape[2])
        y = attention.project_out(dot_product_attention(q, k, v, mask, scale=attention.scale))
        if read is not None:  # patches are not read any more: merging has no effect
            return now.replace(block.finish(now.tokens[:, :read], y))
        now = now.replace(block.add_attention(now.tokens, y))
        if layer >= (encoder.pool_after or 0):  # before, the grid must stay whole
            now = now.merge(k, self.merge_tokens)
        return now.replace(block.add_mlp(now.tokens))

    def _enter(self, now: Sized, grid: Grid, positions: Sequence[Added], layer: int) -> Sized:
        """Input of a block: a merged token has the mean of its patches' positions."""
        if now.merged is None or not positions:
            return now.replace(self.model.encoder.enter(now.tokens, grid, positions, layer))
        table = cast(Tensor, positions[layer])
        prefix = table[: now.prefix].expand(now.tokens.shape[0], -1, -1)
        added = torch.cat([prefix, now.mean_of(table[now.prefix :])], dim=1)
        return now.replace(now.tokens + added)

    def _project(
        self, now: Sized, x: Tensor, attention: SelfAttention, grid: Grid, read: int | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values; rotary positions of a token: the mean place of its patches."""
        rope = attention.rope if isinstance(attention, VariantAttention) else None
        if rope is None or now.merged is None:
            return attention.project(x, grid, read)
        lines = torch.stack(rope.lines(grid), dim=1)
        places = now.mean_of(lines.to(x.device, x.dtype))
        return cast(VariantAttention, attention).project(x, grid, read, places)

    def _pool(self, now: Sized) -> Float[Tensor, "B P"]:
        """Input of the head, with each token weighted by its number of patches."""
        pool, sizes = self.model.pool, now.all_sizes()
        return pool(now.tokens) if sizes is None else cast(Any, pool).weighted(now.tokens, sizes)

    def extra_repr(self) -> str:
        return f"merge_tokens={self.merge_tokens}"


def merging(model: nn.Module, merge_tokens: int) -> nn.Module:
    """Model with `merge_tokens` fewer tokens after each block; with 0, the model itself.

    Raises for a model whose patches cannot be merged.
    """
    if merge_tokens < 0:
        raise InputError(f"merge_tokens {merge_tokens}; valid: 0 (none) or more")
    if not merge_tokens:
        return model
    hindrance = why_not(model)
    if hindrance is not None:
        raise InputError(
            f"merge_tokens {merge_tokens}: {hindrance}; valid: 0, or a Vision Transformer with "
            f"full attention and positions that are added, rotary or none"
        )
    return MergingTransformer(cast(VisionTransformer, model), merge_tokens)


def why_not(model: Any) -> str | None:
    """Reason why the patches of this model cannot be merged; None: they can."""
    ours = isinstance(model, VisionTransformer)
    if not ours or type(model).forward is not VisionTransformer.forward:
        return f"a {type(model).__name__} has no tokens that could be merged"
    config = model.config
    if not config.depth:
        return "the model has no encoder blocks"
    for block in model.encoder.blocks:
        attention = block.attention
        if not isinstance(attention, SelfAttention) or sparse(attention):
            return f"attention {config.attention!r} does not treat all tokens alike"
        if relative(attention):
            table = config.relative_table
            name = (
                f"position {config.position!r}" if table == "none" else f"relative_table {table!r}"
            )
            return f"{name} is about the offset between two patches"
    late = config.position_at != "stem"
    if late and any(isinstance(position, Conditional) for position in model.positions):
        return f"position {config.position!r} at {config.position_at!r} needs the whole grid"
    return None


def unmerged(model: nn.Module) -> tuple[nn.Module, int]:
    """Model without merging, and the number of tokens it merges in each block."""
    if isinstance(model, MergingTransformer):
        return model.model, model.merge_tokens
    return model, 0


def merged_tokens(model: nn.Module) -> int:
    """Number of tokens that a model merges in each block."""
    return unmerged(model)[1]


def check_unmerged(model: nn.Module, wanted: str) -> None:
    """Raise for a model that merges tokens where every token is needed."""
    if isinstance(model, MergingTransformer):
        raise InputError(
            f"{wanted} of a model that merges tokens (merge_tokens {model.merge_tokens}); "
            f"valid: the model without merge_tokens"
        )
