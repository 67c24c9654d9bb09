"""Attention maps: the softmax weights of one head, a block, or all of them."""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vitlab.explain.maps import Maps, patches_of, share_elsewhere, unpooled
from vitlab.explain.request import Each, Query, behind, probe_looks
from vitlab.explain.trace import Back, Stage, Trace, backward, total_score
from vitlab.nn.attention import SelfAttention, attention_weights
from vitlab.nn.pool import AttentionPool


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
    if layer is None and query.token is None and found.model.config.pool == "map":
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
    rows = query.row(found, last)[:, None]  # [B, requested blocks, N]
    for number in range(last, -1, -1):
        if every and number < last:
            rows = torch.cat([query.row(found, number)[:, None], rows], dim=1)
        stage = found.stages[number]
        rows = rows @ step(stage)
        rows = unpooled(rows, found.prefix, stage.grid) if stage.pools else rows
    maps = patches_of(rows, found.prefix, found.grid)  # [B, blocks, h, w]
    return Maps(
        maps[:, -1],
        tuple(maps.unbind(1)) if every else (),
        share_elsewhere(rows[:, -1], found.prefix),
    )


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
    if found.model.config.pool != "map":
        return lambda layer: Query().row(found, layer)
    probed = _probe_relevance(found, target)
    return lambda layer: behind(found, layer, probed)


def _probe_relevance(found: Trace, target: Int[Tensor, " B"]) -> Float[Tensor, "B N"]:
    """Relevance of each token for the target in the attention pooling."""
    model, pool = found.model, found.model.pool
    assert isinstance(pool, AttentionPool)
    with torch.enable_grad():
        tokens = found.tokens().detach().requires_grad_()
        q, k, v = pool.attention.project(pool.probes(len(tokens)), tokens)
        mixed = pool.attention.mix(q, k, v)
        pooled = model.pooled_norm(pool.finish(pool.attention.join(mixed)))
        score = total_score(model.classify(pooled), target)
    (gradient,) = torch.autograd.grad(score, mixed)
    with torch.no_grad():
        return _speaking(attention_weights(q, k), gradient, v)[:, 0]


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
