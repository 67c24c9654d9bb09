"""Relevance for a class (arXiv:2103.15679): attention weighted by its gradient, block after block.

With A the weights of a block and G the gradient of the class's score by them, R grows from the
identity by R + mean over heads of (G ⊙ A)⁺ · R. The rows of R that the head reads are carried from
the last block to the first, so that R is never more than a row.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vitlab.explain.maps import Maps, patches_of, unpooled
from vitlab.explain.query import Query, behind
from vitlab.explain.trace import Back, Stage, Trace, backward, total_score
from vitlab.nn.attention import SelfAttention, attention_weights
from vitlab.nn.pool import AttentionPool


def relevance(found: Trace, target: Int[Tensor, " B"], *, every: bool = False) -> Maps:
    """How much each patch speaks for the target; with `every`, as far as each block has read it."""
    start = _starts(found, target)
    last = len(found.stages) - 1
    rows = start(last)[:, None]  # [B, blocks asked about, N]
    for number, stage, back in backward(found, target, ("mixed",)):
        if every and number < last:
            rows = torch.cat([start(number)[:, None], rows], dim=1)
        rows = rows + rows[:, :, : stage.read] @ _step(stage, back)
        rows = unpooled(rows, found.prefix, stage.grid) if stage.pools else rows
    maps = patches_of(rows, found.prefix, found.grid)  # [B, blocks, h, w]
    return Maps(maps[:, -1], tuple(maps.unbind(1)) if every else ())


def _starts(found: Trace, target: Int[Tensor, " B"]) -> Callable[[int], Float[Tensor, "B N"]]:
    """The row of R to begin with, behind any block."""
    if found.model.config.pool != "map":
        return lambda layer: Query().row(found, layer)
    probed = _probe_relevance(found, target)
    return lambda layer: behind(found, layer, probed)


def _probe_relevance(found: Trace, target: Int[Tensor, " B"]) -> Float[Tensor, "B N"]:
    """How much each token speaks for the target in the attention pooling."""
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
    """What a block adds to R, as a factor of it."""
    attention = stage.block.attention
    assert isinstance(attention, SelfAttention)
    weights = attention.weights_of(back.q, back.k, stage.grid)[:, :, : stage.read]
    return _speaking(weights, back.gradients["mixed"], back.v)


def _speaking(
    weights: Float[Tensor, "B A M N"],
    gradient: Float[Tensor, "B A M V"],
    values: Float[Tensor, "B A N V"],
) -> Float[Tensor, "B M N"]:
    """Mean over the heads of (G ⊙ A)⁺: of mixed = A · values, G is gradient · valuesᵀ."""
    return (gradient @ values.mT).mul_(weights).clamp_(min=0.0).mean(dim=1)
