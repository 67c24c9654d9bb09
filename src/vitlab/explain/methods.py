"""Compute the maps of a request for a batch of images, for every method and model."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from vitlab.explain.attention import attention, relevance, rollout
from vitlab.explain.gradients import (
    gradcam,
    gradcam_of_cnn,
    input_gradient,
    input_gradient_of_cnn,
)
from vitlab.explain.maps import Maps
from vitlab.explain.placement import placement, sample
from vitlab.explain.request import CNN, Ask, Method
from vitlab.explain.trace import Trace, trace
from vitlab.models.vit import VisionTransformer, layer_number
from vitlab.nn.encoder import Grid

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
    ask: Ask,
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
    ask: Ask,
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
    found: Trace, images: Float[Tensor, "B C H W"], ask: Ask, target: Int[Tensor, " B"]
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
    model: CNN, images: Float[Tensor, "B C H W"], ask: Ask, target: Int[Tensor, " B"] | None
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
        maps = {name: maps_of(found, images, Ask(method=name), target) for name in methods}
    else:
        answers = {name: explain(model, images, Ask(method=name)) for name in methods}
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
