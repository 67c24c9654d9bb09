"""Attention rollout (arXiv:2005.00928): attention followed through all blocks.

Each block's heads are averaged, the identity is added for the residual path, rows are scaled to sum
to one, and the matrices are multiplied. Only rows of the product are wanted, so rows are carried
from the last block to the first: no product of two matrices of tokens is ever made.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from vitlab.explain.maps import Maps, patches_of, share_elsewhere, unpooled
from vitlab.explain.query import Query
from vitlab.explain.trace import Stage, Trace


@torch.no_grad()
def rollout(found: Trace, query: Query, *, layer: int | None = None, every: bool = False) -> Maps:
    """What the query holds behind a block (None: the last), by the patches that it came from.

    With `every`, the same for each block up to it.
    """
    last = len(found.stages) - 1 if layer is None else layer
    rows = query.row(found, last)[:, None]  # [B, blocks asked about, N]
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
