"""The first filters of a model: what it looks for in the pixels (arXiv:2010.11929, figure 7)."""

from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from vitlab.errors import Lacks
from vitlab.explain.principal import principal_components
from vitlab.models.vit import VisionTransformer
from vitlab.nn.patch_embed import ShiftedPatchEmbed
from vitlab.nn.resnet import StdConv2d
from vitlab.nn.stem import HybridEmbed


@dataclass(frozen=True, eq=False)
class Filters:
    """Filters over pixels, or the directions in which the filters of a patch embedding vary."""

    kind: Literal["components", "filters"]
    images: Float[Tensor, "k C H W"]
    shares: Float[Tensor, " k"] | None
    """Of the variance between filters, of each component."""
    total: int
    """Filters that the layer has."""
    layer: str
    """Which layer of the model it is, in words."""


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
    """Whether one linear map reads the pixels of each patch."""
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
    raise Lacks("filters: the model has no convolution or patch embedding that reads pixels")


def _on_the_image(
    weight: Float[Tensor, "D F P Q"], patch_size: tuple[int, int]
) -> Float[Tensor, "D C H W"]:
    """Filters over an image and its four shifted copies, as filters over the image alone.

    A copy that was moved by half a patch is read half a patch beside: the five parts of a filter
    are laid where they read, and added where they overlap.
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
