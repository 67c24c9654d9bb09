"""Compute the maps of a request for a batch of images, for every method and model."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from vitlab.explain.explanation import placement, sample
from vitlab.explain.gradients import (
    gradcam,
    gradcam_of_cnn,
    input_gradient,
    input_gradient_of_cnn,
)
from vitlab.explain.request import CNN, Each, ExplainRequest, Method, Query, behind, probe_looks
from vitlab.explain.trace import (
    Back,
    Maps,
    Stage,
    Trace,
    backward,
    patches_of,
    share_elsewhere,
    total_score,
    trace,
    unpooled,
)
from vitlab.models.vit import VisionTransformer, layer_number
from vitlab.nn.attention import SelfAttention, attention_weights
from vitlab.nn.encoder import Grid
from vitlab.nn.pool import AttentionPool

ATTENTION_BYTES = 1 << 29
"""Bytes that the attention weights of one block may take; larger batches are split."""
GRAPH_BYTES = 1 << 30
"""Bytes that the graphs of all blocks may take; beyond, the backward pass recomputes them."""
MOST_IMAGES = 8


@dataclass(frozen=True, eq=False)
class Answer:
    """Maps of a batch of images, the model's predictions, and the class that the maps are about."""

    maps: Maps
    logits: Float[Tensor, "B classes"]
    target: Int[Tensor, " B"]


def explain(
    model: nn.Module,
    images: Float[Tensor, "B C H W"],
    ask: ExplainRequest,
    target: Int[Tensor, " B"] | None = None,
) -> Answer:
    """Maps for a request; without `target`, of the class with the highest score."""
    ask.check(model)
    with torch.inference_mode(mode=False):
        images = images.clone() if images.is_inference() else images
        return _explain(model, images, ask, target)


def _explain(
    model: nn.Module,
    images: Float[Tensor, "B C H W"],
    ask: ExplainRequest,
    target: Int[Tensor, " B"] | None,
) -> Answer:
    if not isinstance(model, VisionTransformer):
        assert isinstance(model, CNN)
        return _of_cnn(model, images, ask, target)
    record = ask.of_a_class and graph_bytes(model, len(images)) <= GRAPH_BYTES
    found = trace(model, images, record=record)
    with torch.no_grad():
        logits = found.logits()
    target = logits.argmax(dim=1) if target is None else target
    return Answer(maps_of(found, images, ask, target), logits, target)


def maps_of(
    found: Trace, images: Float[Tensor, "B C H W"], ask: ExplainRequest, target: Int[Tensor, " B"]
) -> Maps:
    """Maps of a model that has already been run."""
    ask.query.check(found.grid)
    every = ask.each is not None
    layer = None if ask.layer is None else layer_number(ask.layer, len(found.stages))
    if ask.method == "attention":
        return attention(found, ask.query, layer=layer, head=ask.head, each=ask.each)
    if ask.method == "rollout":
        return rollout(found, ask.query, layer=layer, every=every)
    if ask.method == "relevance":
        return relevance(found, target, every=every)
    if ask.method == "gradcam":
        return gradcam(found, target, layer=layer, every=every)
    return input_gradient(found, images, target)


def images_at_once(model: nn.Module) -> int:
    """Number of images explained together, so that memory stays small."""
    if not isinstance(model, VisionTransformer):
        return MOST_IMAGES
    config = model.config
    return max(1, min(MOST_IMAGES, ATTENTION_BYTES // (4 * config.heads * config.tokens**2)))


def graph_bytes(model: VisionTransformer, images: int) -> int:
    """Approximate bytes of the graphs of all blocks: vectors of the model's and the MLP's width."""
    config = model.config
    numbers = config.tokens * (12 * config.width + 2 * config.mlp_width) * config.depth
    return 4 * images * numbers


def _of_cnn(
    model: CNN,
    images: Float[Tensor, "B C H W"],
    ask: ExplainRequest,
    target: Int[Tensor, " B"] | None,
) -> Answer:
    with torch.no_grad():
        features = model.feature_map(images)
        logits = model.classify_map(features)
    target = logits.argmax(dim=1) if target is None else target
    if ask.method == "gradcam":
        maps = gradcam_of_cnn(model, features, target)
    else:
        grid = (features.shape[2], features.shape[3])
        maps = input_gradient_of_cnn(model, images, target, grid)
    return Answer(maps, logits, target)


def every_method(
    model: nn.Module, images: Float[Tensor, "B C H W"], methods: Sequence[Method], grid: Grid
) -> tuple[Int[Tensor, " B"], dict[str, Float[Tensor, "B r c"]]]:
    """Most likely class of each image, and each method's map of it in the cells of one grid."""
    if isinstance(model, VisionTransformer):
        found = trace(model, images)
        with torch.no_grad():
            target = found.logits().argmax(dim=1)
        maps = {
            name: maps_of(found, images, ExplainRequest(method=name), target) for name in methods
        }
    else:
        answers = {name: explain(model, images, ExplainRequest(method=name)) for name in methods}
        target = answers[methods[0]].target
        maps = {name: answer.maps for name, answer in answers.items()}
    return target, {name: _in_cells(model, own.map, images, grid) for name, own in maps.items()}


def _in_cells(
    model: nn.Module, maps: Float[Tensor, "B h w"], images: Float[Tensor, "B C H W"], grid: Grid
) -> Float[Tensor, "B r c"]:
    """Maps at the centres of equal cells of the image."""
    size = (images.shape[2], images.shape[3])
    where = placement(model, size, (maps.shape[1], maps.shape[2]))
    rows, columns = (
        (np.arange(cells) + 0.5) * side / cells for cells, side in zip(grid, size, strict=True)
    )
    each = [sample(one.float().cpu().numpy(), where, rows, columns) for one in maps]
    return torch.from_numpy(np.stack(each))


@torch.no_grad()
def attention(
    found: Trace,
    query: Query,
    *,
    layer: int | None = None,
    head: int | None = None,
    each: Each | None = None,
) -> Maps:
    """Attention of the query in one block (None: the last, or the attention pooling), per head.

    Without `head`, the mean of the heads.
    """
    last = len(found.stages) - 1
    if layer is None and query.token is None and found.model.config.attention_pool:
        looks, grid = probe_looks(found), found.last_grid
    else:
        layer = last if layer is None else layer
        looks, grid = _looks(found, query, layer), found.stages[layer].grid
    rows = looks.mean(dim=1) if head is None else looks[:, head]
    layers: tuple[Tensor, ...] = ()
    if each is not None:
        layers = tuple(_layer_maps(found, query, number, each) for number in range(last + 1))
    return Maps(patches_of(rows, found.prefix, grid), layers, share_elsewhere(rows, found.prefix))


def _looks(found: Trace, query: Query, layer: int) -> Float[Tensor, "B A N"]:
    """Attention weights of the query in a block, per head."""
    return torch.einsum("bm,bamn->ban", query.row(found, layer), found.stages[layer].weights())


def _layer_maps(found: Trace, query: Query, layer: int, each: Each) -> Float[Tensor, "B *A h w"]:
    looks = _looks(found, query, layer)
    rows = looks if each == "head" else looks.mean(dim=1)
    return patches_of(rows, found.prefix, found.stages[layer].grid)


# Attention rollout (arXiv:2005.00928): attention followed through all blocks.
#
# Each block's heads are averaged, the identity is added for the residual path, rows are scaled to
# sum to one, and the matrices are multiplied. Only rows of the product are needed, so rows are
# carried from the last block to the first: two matrices of tokens are never multiplied.


@torch.no_grad()
def rollout(found: Trace, query: Query, *, layer: int | None = None, every: bool = False) -> Maps:
    """Contribution of each patch to the query after a block (None: the last), by rollout.

    With `every`, also for each block up to it.
    """
    last = len(found.stages) - 1 if layer is None else layer
    rows = _carried(found, lambda number: query.row(found, number)[:, None], last, every=every)
    maps = patches_of(rows, found.prefix, found.grid)  # [B, blocks, h, w]
    return Maps(
        maps[:, -1],
        tuple(maps.unbind(1)) if every else (),
        share_elsewhere(rows[:, -1], found.prefix),
    )


@torch.no_grad()
def rollouts(found: Trace, queries: Sequence[Query]) -> Float[Tensor, "B Q h w"]:
    """Contribution of each patch to each of several queries after the last block, by rollout."""
    start = torch.stack([query.row(found, len(found.stages) - 1) for query in queries], dim=1)
    rows = _carried(found, lambda _: start, len(found.stages) - 1, every=False)
    return patches_of(rows, found.prefix, found.grid)


def _carried(
    found: Trace, start: Callable[[int], Float[Tensor, "B Q N"]], last: int, *, every: bool
) -> Float[Tensor, "B R N"]:
    """Rows after the block `last`, carried to the first; with `every`, also those of each block."""
    rows = start(last)
    for number in range(last, -1, -1):
        if every and number < last:
            rows = torch.cat([start(number), rows], dim=1)
        stage = found.stages[number]
        rows = rows @ step(stage)
        rows = unpooled(rows, found.prefix, stage.grid) if stage.pools else rows
    return rows


def step(stage: Stage) -> Float[Tensor, "B N N"]:
    """One factor of the product."""
    mixing = stage.weights().mean(dim=1)
    mixing.diagonal(dim1=1, dim2=2).add_(1.0)
    return mixing.div_(mixing.sum(dim=-1, keepdim=True))


# Relevance for a class (arXiv:2103.15679): attention weighted by its gradient, block after block.
#
# With A the weights of a block and G the gradient of the class's score by them, R grows from the
# identity by R + mean over heads of (G ⊙ A)⁺ · R. The rows of R that the head reads are carried
# from the last block to the first, so that R is never more than a row.


def relevance(found: Trace, target: Int[Tensor, " B"], *, every: bool = False) -> Maps:
    """Relevance of each patch for the target; with `every`, also up to each block."""
    start = _starts(found, target)
    last = len(found.stages) - 1
    rows = start(last)[:, None]  # [B, requested blocks, N]
    for number, stage, back in backward(found, target, ("mixed",)):
        if every and number < last:
            rows = torch.cat([start(number)[:, None], rows], dim=1)
        rows = rows + rows[:, :, : stage.read] @ _step(stage, back)
        rows = unpooled(rows, found.prefix, stage.grid) if stage.pools else rows
    maps = patches_of(rows, found.prefix, found.grid)  # [B, blocks, h, w]
    return Maps(maps[:, -1], tuple(maps.unbind(1)) if every else ())


def _starts(found: Trace, target: Int[Tensor, " B"]) -> Callable[[int], Float[Tensor, "B N"]]:
    """Initial row of R after any block."""
    if not found.model.config.attention_pool:
        return lambda layer: Query().row(found, layer)
    probed = _probe_relevance(found, target)
    return lambda layer: behind(found, layer, probed)


def _probe_relevance(found: Trace, target: Int[Tensor, " B"]) -> Float[Tensor, "B N"]:
    """Relevance of each token for the target in the attention pooling."""
    model, pool = found.model, found.model.pool
    assert isinstance(pool, AttentionPool)
    with torch.enable_grad():
        tokens = found.tokens().detach().requires_grad_()
        q, k, v = pool.attention.project(pool.probes(len(tokens)), tokens[:, pool.skip :])
        mixed = pool.attention.attend(q, k, v)
        pooled = model.pooled_norm(pool.finish(pool.attention.project_out(mixed)))
        score = total_score(model.classify(pooled), target)
    (gradient,) = torch.autograd.grad(score, mixed)
    with torch.no_grad():
        return F.pad(_speaking(attention_weights(q, k), gradient, v)[:, 0], (pool.skip, 0))


@torch.no_grad()
def _step(stage: Stage, back: Back) -> Float[Tensor, "B M N"]:
    """Contribution of a block to R, as a factor of it."""
    attention = stage.block.attention
    assert isinstance(attention, SelfAttention)
    weights = attention.weights_of(back.q, back.k, stage.grid)[:, :, : stage.read]
    return _speaking(weights, back.gradients["mixed"], back.v)


def _speaking(
    weights: Float[Tensor, "B A M N"],
    gradient: Float[Tensor, "B A M V"],
    values: Float[Tensor, "B A N V"],
) -> Float[Tensor, "B M N"]:
    """Mean over the heads of (G ⊙ A)⁺: for mixed = A · values, G is gradient · valuesᵀ."""
    return (gradient @ values.mT).mul_(weights).clamp_(min=0.0).mean(dim=1)
