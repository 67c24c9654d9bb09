"""Maps from gradients: Grad-CAM (arXiv:1610.02391) and input gradients (arXiv:1312.6034)."""

from collections.abc import Collection

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from vitlab.explain.explanation import cell_means, placement
from vitlab.explain.request import CNN
from vitlab.explain.trace import Maps, Trace, backward, score_gradient, total_score
from vitlab.nn.encoder import Grid


def gradcam(
    found: Trace, target: Int[Tensor, " B"], *, layer: int | None = None, every: bool = False
) -> Maps:
    """Features of the patches, weighted by the mean gradient of the target's score.

    The features are the attention input of a block; without `layer`, of the last block, or the
    pooling's input where it reads the patches themselves.
    """
    last = len(found.stages) - 1
    pooled = layer is None and found.model.read is None
    shown = last if layer is None else layer
    wanted: Collection[int] = range(last + 1) if every else () if pooled else (shown,)
    maps = _block_cams(found, target, wanted) if wanted else {}
    return Maps(
        _pooled_cam(found, target) if pooled else maps[shown],
        tuple(maps[number] for number in range(last + 1)) if every else (),
    )


def gradcam_of_cnn(
    model: CNN, features: Float[Tensor, "B D h w"], target: Int[Tensor, " B"]
) -> Maps:
    """Grad-CAM of the last feature map of a CNN."""
    with torch.enable_grad():
        node = features.detach().requires_grad_()
        score = total_score(model.classify_map(node), target)
    (gradient,) = torch.autograd.grad(score, node)
    grid = (features.shape[2], features.shape[3])
    return Maps(_cam(features.flatten(2).mT, gradient.flatten(2).mT, grid))


def input_gradient(
    found: Trace, images: Float[Tensor, "B C H W"], target: Int[Tensor, " B"]
) -> Maps:
    """Norm of the gradient of the target's score at each pixel; its mean in each patch."""
    upstream = score_gradient(found, target)  # of the tokens, if there is no block
    for _, _, back in backward(found, target, ("before",)):
        upstream = back.gradients["before"]
    with torch.enable_grad():
        node = images.detach().requires_grad_()
        tokens, _, _ = found.model.embed(node)
    (gradient,) = torch.autograd.grad(tokens, node, upstream)
    return _of_pixels(found.model, gradient, found.grid)


def input_gradient_of_cnn(
    model: CNN, images: Float[Tensor, "B C H W"], target: Int[Tensor, " B"], grid: Grid
) -> Maps:
    """Input gradient of a CNN, its mean in the cells of a grid."""
    with torch.enable_grad():
        node = images.detach().requires_grad_()
        score = total_score(model(node), target)
    (gradient,) = torch.autograd.grad(score, node)
    return _of_pixels(model, gradient, grid)


def _of_pixels(model: nn.Module, gradient: Float[Tensor, "B C H W"], grid: Grid) -> Maps:
    fine = gradient.norm(dim=1)
    where = placement(model, (fine.shape[1], fine.shape[2]), grid)
    return Maps(cell_means(fine, where, grid), fine=fine)


def _block_cams(
    found: Trace, target: Int[Tensor, " B"], wanted: Collection[int]
) -> dict[int, Float[Tensor, "B h w"]]:
    patches, maps = slice(found.prefix, None), {}
    for number, stage, back in backward(found, target, ("read",), down_to=min(wanted)):
        if number in wanted:
            gradient = back.gradients["read"][:, patches]
            maps[number] = _cam(back.read[:, patches], gradient, stage.grid)
    return maps


def _pooled_cam(found: Trace, target: Int[Tensor, " B"]) -> Float[Tensor, "B h w"]:
    patches = slice(found.prefix, None)
    gradient = score_gradient(found, target, at="tokens")[:, patches]
    return _cam(found.tokens().detach()[:, patches], gradient, found.last_grid)


def _cam(
    features: Float[Tensor, "B P D"], gradient: Float[Tensor, "B P D"], grid: Grid
) -> Float[Tensor, "B h w"]:
    """ReLU of the sum of the features, each weighted by the mean of its gradient over the map."""
    importance = gradient.mean(dim=1, keepdim=True)
    return (features * importance).sum(dim=-1).clamp(min=0.0).unflatten(1, grid)
