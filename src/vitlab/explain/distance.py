"""Attention distance and entropy of heads (arXiv:2010.11929, figure 7 right and appendix D.7)."""

import torch
from einops import einsum
from jaxtyping import Float
from torch import Tensor

Grid = tuple[int, int]
Stride = tuple[float, float]


def patch_distances(grid: Grid, stride: Stride) -> Float[Tensor, "P P"]:
    """Pixels between the centres of every two patches; `stride` is (down, right) in pixels."""
    down, right = (
        torch.arange(size, dtype=torch.float64) * step
        for size, step in zip(grid, stride, strict=True)
    )
    places = torch.cartesian_prod(down, right)
    return torch.cdist(places, places, compute_mode="donot_use_mm_for_euclid_dist")


def attention_distance(
    weights: Float[Tensor, "B A N N"], grid: Grid, *, prefix: int, stride: Stride
) -> Float[Tensor, "B A"]:
    """Mean distance between query and key, weighted by attention, over the queries of an image.

    Only patches have a position: prefix tokens are neither queries nor keys, and the weights of
    each query are divided by their sum over the patches. A query without weight on patches has no
    distance; NaN if no query has one.
    """
    among = weights[..., prefix:, prefix:]
    distances = patch_distances(grid, stride).to(weights.device, weights.dtype)
    total = among.sum(dim=-1)
    reached = einsum(among, distances, "b a q k, q k -> b a q")
    return torch.where(total > 0, reached / total, torch.nan).nanmean(dim=-1)


def attention_entropy(weights: Float[Tensor, "B A N N"]) -> Float[Tensor, "B A"]:
    """Mean entropy in nats of the weights over all keys, over all queries with any weight."""
    entropy = torch.special.entr(weights).sum(dim=-1)
    looks = weights.sum(dim=-1) > 0
    return torch.where(looks, entropy, torch.nan).nanmean(dim=-1)


def prefix_share(weights: Float[Tensor, "B A N N"], *, prefix: int) -> Float[Tensor, "B A"]:
    """Share of the patches' attention on the class token and registers."""
    return weights[..., prefix:, :prefix].sum(dim=-1).mean(dim=-1)
