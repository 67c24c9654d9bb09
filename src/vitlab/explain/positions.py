"""What a model knows of places: its position embeddings compared (arXiv:2010.11929, figure 7)."""

from typing import Any

import torch.nn.functional as F
from einops import einsum
from jaxtyping import Float
from torch import Tensor, nn

from vitlab.errors import Lacks
from vitlab.models.vit import VisionTransformer
from vitlab.nn.offset_bias import OffsetBias
from vitlab.nn.pos_embed import Conditional


def position_tables(model: nn.Module) -> list[Float[Tensor, "h w D"]]:
    """The vectors that are added to the patches: one table, or one for each layer with its own."""
    model = _transformer(model)
    if not len(model.positions) or isinstance(model.positions[0], Conditional):
        raise Lacks(f"positions: {_without_table(model.config.position)}")
    grid = model.config.grid
    patches = grid[0] * grid[1]
    tables = [position(grid).detach().cpu().double() for position in model.positions]
    # Entries of prefix tokens come first, and have no place.
    return [table[len(table) - patches :].unflatten(0, grid) for table in tables]


def offset_tables(model: nn.Module) -> list[Float[Tensor, "_ K"]]:
    """The embeddings of offsets of a model with relative positions, layer by layer; else none.

    Row i of n is for a key that comes `n // 2 - i` places after the query in reading order.
    """
    return [table for table in _of_attention(model, "offsets") if isinstance(table, Tensor)]


def bias_tables(model: nn.Module) -> list[Float[Tensor, "A _ _"]]:
    """What each head adds to its scores by row and column of key minus query; else none.

    Offset zero is in the middle.
    """
    tables = _of_attention(model, "offset_bias")
    return [part.table.detach().cpu().double() for part in tables if isinstance(part, OffsetBias)]


def cosine_maps(table: Float[Tensor, "h w D"]) -> Float[Tensor, "h w h w"]:
    """For every place, the cosine of its vector with that of each other place."""
    unit = F.normalize(table, dim=-1)
    return einsum(unit, unit, "i j d, k l d -> i j k l")


def _of_attention(model: nn.Module, name: str) -> list[Any]:
    """A part of the attention of every block, None where there is no such part."""
    if not isinstance(model, VisionTransformer):
        return []
    found = [getattr(block.attention, name, None) for block in model.encoder.blocks]
    return [part.detach().cpu().double() if isinstance(part, Tensor) else part for part in found]


def _transformer(model: nn.Module) -> VisionTransformer:
    if not isinstance(model, VisionTransformer):
        raise Lacks(f"positions: a {type(model).__name__} has no position embeddings")
    return model


def _without_table(position: str) -> str:
    reasons = {
        "rope": "rotary positions turn queries and keys by fixed angles and have no table",
        "conditional": "conditional positions depend on the tokens and have no table",
        "none": "the model is not told where its patches lie",
    }
    return reasons.get(position, f"position {position!r} adds no table to the tokens")
