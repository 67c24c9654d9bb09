"""Similarity of a model's position embeddings (arXiv:2010.11929, figure 7)."""

from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from einops import einsum
from jaxtyping import Float
from torch import Tensor, nn

from vitlab.errors import Unsupported
from vitlab.explain.embedding import principal_components
from vitlab.models.vit import VisionTransformer
from vitlab.nn.patch_embed import HybridEmbed, ShiftedPatchEmbed
from vitlab.nn.pos_embed import Conditional, OffsetBias
from vitlab.nn.resnet import StdConv2d


def position_tables(model: nn.Module) -> list[Float[Tensor, "h w D"]]:
    """Vectors added to the patches: one table, or one for each layer with its own."""
    model = _transformer(model)
    if not len(model.positions) or isinstance(model.positions[0], Conditional):
        raise Unsupported(f"positions: {_without_table(model.config.position)}")
    grid = model.config.grid
    patches = grid[0] * grid[1]
    tables = [position(grid).detach().cpu().double() for position in model.positions]
    # Entries of prefix tokens come first, and have no position.
    return [table[len(table) - patches :].unflatten(0, grid) for table in tables]


def offset_tables(model: nn.Module) -> list[Float[Tensor, "_ K"]]:
    """Offset embeddings of a model with relative positions, layer by layer; else empty.

    Row i of n is for a key that comes `n // 2 - i` places after the query in reading order.
    """
    return [table for table in _of_attention(model, "offsets") if isinstance(table, Tensor)]


def bias_tables(model: nn.Module) -> list[Float[Tensor, "A _ _"]]:
    """Score bias of each head by row and column of key minus query; else empty.

    Offset zero is in the middle.
    """
    tables = _of_attention(model, "offset_bias")
    return [part.table.detach().cpu().double() for part in tables if isinstance(part, OffsetBias)]


def cosine_maps(table: Float[Tensor, "h w D"]) -> Float[Tensor, "h w h w"]:
    """Cosine of every position's vector with those of all other positions."""
    unit = F.normalize(table, dim=-1)
    return einsum(unit, unit, "i j d, k l d -> i j k l")


def _of_attention(model: nn.Module, name: str) -> list[Any]:
    """A part of the attention of every block, None if there is no such part."""
    if not isinstance(model, VisionTransformer):
        return []
    found = [getattr(block.attention, name, None) for block in model.encoder.blocks]
    return [part.detach().cpu().double() if isinstance(part, Tensor) else part for part in found]


def _transformer(model: nn.Module) -> VisionTransformer:
    if not isinstance(model, VisionTransformer):
        raise Unsupported(f"positions: a {type(model).__name__} has no position embeddings")
    return model


def _without_table(position: str) -> str:
    reasons = {
        "rope": "rotary positions turn queries and keys by fixed angles and have no table",
        "conditional": "conditional positions depend on the tokens and have no table",
        "none": "the model has no positions",
    }
    return reasons.get(position, f"position {position!r} adds no table to the tokens")


# The first filters of a model: its low-level pixel patterns (arXiv:2010.11929, figure 7).


@dataclass(frozen=True, eq=False)
class Filters:
    """Filters over pixels, or principal directions of the filters of a patch embedding."""

    kind: Literal["components", "filters"]
    images: Float[Tensor, "k C H W"]
    shares: Float[Tensor, " k"] | None
    """Share of each component in the variance between filters."""
    total: int
    """Number of filters of the layer."""
    layer: str
    """Description of the layer."""


def first_filters(model: nn.Module, count: int) -> Filters:
    """Principal components of a patch embedding; of a convolution, its strongest filters."""
    if _embeds_patches(model):
        stem: Any = model.stem
        weight = stem.proj.weight.detach().cpu().double()
        shifted = isinstance(stem, ShiftedPatchEmbed)
        found = _on_the_image(weight, stem.patch_size) if shifted else weight
        components = principal_components(found.flatten(1), count)
        return Filters(
            kind="components",
            images=components.directions.unflatten(1, found.shape[1:]),
            shares=components.shares,
            total=len(weight),
            layer="shifted patch embedding" if shifted else "patch embedding",
        )
    conv = _first_convolution(model)
    applied = conv.standardised() if isinstance(conv, StdConv2d) else conv.weight
    weight = applied.detach().cpu().double()
    strongest = weight.flatten(1).norm(dim=1).argsort(descending=True, stable=True)
    return Filters(
        kind="filters",
        images=weight[strongest[:count]],
        shares=None,
        total=len(weight),
        layer="first convolution",
    )


def _embeds_patches(model: nn.Module) -> bool:
    """True if one linear map reads the pixels of each patch."""
    stem = getattr(model, "stem", None)
    if not isinstance(model, VisionTransformer) or isinstance(stem, HybridEmbed):
        return False
    projection = getattr(stem, "proj", None)
    return isinstance(projection, nn.Conv2d) and projection.kernel_size == projection.stride


def _first_convolution(model: nn.Module) -> nn.Conv2d:
    stem = getattr(model, "stem", None)
    reader = stem.resnet if isinstance(stem, HybridEmbed) else model
    for part in reader.modules():
        if isinstance(part, nn.Conv2d):
            return part
    raise Unsupported("filters: the model has no convolution or patch embedding that reads pixels")


def _on_the_image(
    weight: Float[Tensor, "D F P Q"], patch_size: tuple[int, int]
) -> Float[Tensor, "D C H W"]:
    """Filters over an image and its four shifted copies, as filters over the image alone.

    A copy shifted by half a patch is read half a patch aside: the five parts of a filter are placed
    where they read, and added where they overlap.
    """
    down, right = patch_size[0] // 2, patch_size[1] // 2
    parts = weight.chunk(5, dim=1)
    # In the order of `with_shifts`: the image itself, then the copies by their corners.
    corners = [(down, right), (0, 0), (0, 2 * right), (2 * down, 0), (2 * down, 2 * right)]
    placed = [
        F.pad(part, (left, 2 * right - left, top, 2 * down - top))
        for part, (top, left) in zip(parts, corners, strict=True)
    ]
    return torch.stack(placed).sum(dim=0)
