"""All statistics that figures need of a model and some images, in one pass."""

from dataclasses import dataclass, field

import torch
from einops import einsum
from jaxtyping import Float
from torch import Tensor, nn

from vitlab.explain.trace import Visit, visiting
from vitlab.models.features import Readout
from vitlab.models.vit import VisionTransformer
from vitlab.nn.encoder import Grid

# Attention distance and entropy of heads (arXiv:2010.11929, figure 7 right and appendix D.7).

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


@dataclass(eq=False)
class LayerStatistics:
    """Attention statistics of the heads of one block, per image."""

    grid: Grid
    tokens: int
    distance: list[Float[Tensor, "B A"]] = field(default_factory=list)
    """Mean attention distance in pixels of the model input."""
    entropy: list[Float[Tensor, "B A"]] = field(default_factory=list)
    prefix_share: list[Float[Tensor, "B A"]] = field(default_factory=list)


@dataclass(kw_only=True, eq=False)
class Gathered:
    """Collected statistics of a model; lists have one entry per batch."""

    attention: dict[int, LayerStatistics] = field(default_factory=dict)
    means: dict[int, list[Float[Tensor, "B D"]]] = field(default_factory=dict)
    """Mean patch token of each image, by number of blocks passed: 0 is the encoder input."""
    pooled: list[Float[Tensor, "B D"]] = field(default_factory=list)
    patches: list[Float[Tensor, "B h w D"]] = field(default_factory=list)
    pictures: list[Float[Tensor, "B C H W"]] = field(default_factory=list)
    """Images of `patches`."""
    shown: list[int] = field(default_factory=list)
    """Their indices, in the order of all images."""
    seen: int = 0


@dataclass(frozen=True, kw_only=True)
class Gatherer:
    """Selection of statistics: attention costs a matrix of tokens for every head."""

    model: nn.Module
    attention: bool = False
    means: bool = False
    pooled: bool = False
    pictures: frozenset[int] = frozenset()
    """Indices of the images whose patches are kept."""

    def see(self, images: Float[Tensor, "B C H W"], found: Gathered) -> None:
        """Run the model on a batch and add its statistics."""
        if not isinstance(self.model, VisionTransformer):
            if self.pooled:
                found.pooled.append(Readout(self.model)(images).float().cpu())
            return
        height, width = images.shape[-2:]
        with visiting(self.model, lambda visit: self._visit(visit, (height, width), found)):
            features = self.model.features(images)
        if self.pooled:
            found.pooled.append(features.pooled.float().cpu())
        kept = [i for i in range(len(images)) if found.seen + i in self.pictures]
        if kept:
            found.patches.append(features.patches[kept].float().cpu())
            found.pictures.append(images[kept].cpu())
            found.shown += [found.seen + i for i in kept]
        found.seen += len(images)

    def _visit(self, visit: Visit, size: tuple[int, int], found: Gathered) -> None:
        assert isinstance(self.model, VisionTransformer)
        prefix = self.model.config.prefix
        if self.means:
            if not visit.layer:
                found.means.setdefault(0, []).append(_mean_patch(visit.entering, prefix))
            found.means.setdefault(visit.layer + 1, []).append(_mean_patch(visit.leaving, prefix))
        if self.attention:
            weights = visit.attention()
            looks = found.attention.setdefault(
                visit.layer, LayerStatistics(visit.grid, weights.shape[-1])
            )
            stride = (size[0] / visit.grid[0], size[1] / visit.grid[1])
            distance = attention_distance(weights, visit.grid, prefix=prefix, stride=stride)
            looks.distance.append(distance.cpu())
            looks.entropy.append(attention_entropy(weights).cpu())
            looks.prefix_share.append(prefix_share(weights, prefix=prefix).cpu())


def batch_size_for(model: nn.Module, numbers: int = 1 << 26, most: int = 32) -> int:
    """Batch size that keeps the attention of one block within this many `numbers`."""
    if not isinstance(model, VisionTransformer):
        return most
    config = model.config
    return max(1, min(most, numbers // (config.heads * config.tokens**2)))


def stacked(parts: dict[int, list[Tensor]]) -> Float[Tensor, "L n D"]:
    """Lists of batches, in the order of their keys, as one tensor."""
    return torch.stack([torch.cat(parts[key]) for key in sorted(parts)])


def _mean_patch(tokens: Float[Tensor, "B N D"], prefix: int) -> Float[Tensor, "B D"]:
    return tokens[:, prefix:].mean(dim=1).cpu().double()
