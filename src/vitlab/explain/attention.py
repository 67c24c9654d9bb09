"""Where tokens look: the softmax weights themselves, of one head, a block, or all of them."""

import torch
from jaxtyping import Float
from torch import Tensor

from vitlab.explain.maps import Maps, patches_of, share_elsewhere
from vitlab.explain.query import Each, Query, probe_looks
from vitlab.explain.trace import Trace


@torch.no_grad()
def attention(
    found: Trace,
    query: Query,
    *,
    layer: int | None = None,
    head: int | None = None,
    each: Each | None = None,
) -> Maps:
    """Where the query looks in one block (None: the last, or the attention pooling), by its heads.

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
    """Where the query looks in a block, head by head."""
    return torch.einsum("bm,bamn->ban", query.row(found, layer), found.stages[layer].weights())


def _layer_maps(found: Trace, query: Query, layer: int, each: Each) -> Float[Tensor, "B *A h w"]:
    looks = _looks(found, query, layer)
    rows = looks if each == "head" else looks.mean(dim=1)
    return patches_of(rows, found.prefix, found.stages[layer].grid)
