"""The gradient of a batch from parts that are computed at the same time, each with its own core.

Two operations at once keep two cores busier than one operation on both, which waits for the slower
core after every layer. Only where the parts of a batch know nothing of each other: no batch norm,
unless it looks at each part by itself, and nothing random, which threads would draw in any order.
"""

import copy
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from vitlab.data.loading.batch import Batch
from vitlab.machine.cores import parts_at_once
from vitlab.machine.device import dtype_of
from vitlab.models.vit import VisionTransformer, logits_of
from vitlab.training.config import TrainConfig
from vitlab.training.loss import Loss

OURS = {
    "stem": ("patch", "resnet", "conv", "shifted"),
    "attention": ("full", "lsa", "sliding", "axial", "sparse"),
}
"""Parts that are known to draw nothing but dropout."""


def parts_of(model: nn.Module, batch: Batch, config: TrainConfig) -> int:
    """Parts in which the gradient of this batch is computed at the same time; 1: as a whole."""
    special = config.compile or config.recompute_activations or config.accumulate > 1
    ghosts = config.ghost_batches
    dtype = dtype_of(config.precision, batch.images.device)
    if special or dtype != torch.float32 or not independent(model, ghosts=ghosts > 1):
        return 1
    parts = parts_at_once(batch.images.device.type, torch.get_num_threads(), len(batch.images))
    return parts if ghosts in (1, parts) else 1


def independent(model: nn.Module, *, ghosts: bool = False) -> bool:
    """Whether what becomes of an image depends on it and the weights alone.

    With `ghosts` also on its own part of the batch, through batch norm.
    """
    if not isinstance(model, VisionTransformer):  # what hides patches draws them
        return False
    settings = model.config
    if settings.dropout or settings.attention_dropout or settings.drop_path:
        return False
    if any(getattr(settings, part) not in names for part, names in OURS.items()):
        return False
    return ghosts or not batch_norms(model)


def batch_norms(model: nn.Module) -> list[_BatchNorm]:
    """Every batch norm of a model, in its order."""
    return [module for module in model.modules() if isinstance(module, _BatchNorm)]


def backward_side_by_side(
    model: nn.Module, batch: Batch, parts: int, loss_of: Loss, label_smoothing: float
) -> Tensor:
    """Set the gradients of the batch's mean loss, and return the loss."""
    learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
    work = _Work(learning, len(batch.images), loss_of, label_smoothing)
    models = [_twin(model) for _ in range(parts)] if batch_norms(model) else [model] * parts
    images, targets = batch.images.chunk(parts), batch.targets.chunk(parts)
    with ThreadPoolExecutor(parts, initializer=torch.set_num_threads, initargs=(1,)) as threads:
        found = list(threads.map(work.gradients, models, images, targets))
    _follow(model, models)
    (total, gradients), *others = found
    for loss, more in others:
        total = total + loss
        _add(gradients, more)
    for parameter, gradient in zip(learning, gradients, strict=True):
        parameter.grad = gradient
    return total


@dataclass(frozen=True, slots=True)
class _Work:
    learning: Sequence[nn.Parameter]
    images: int
    """Of the whole batch."""
    loss_of: Loss
    """A mean over images."""
    label_smoothing: float

    def gradients(
        self, model: nn.Module, images: Tensor, targets: Tensor
    ) -> tuple[Tensor, list[Tensor | None]]:
        """The part's share of the mean loss, and of its gradient."""
        loss = self.loss_of(logits_of(model)(images), targets, self.label_smoothing)
        loss = loss * (len(images) / self.images)
        return loss.detach(), list(torch.autograd.grad(loss, self.learning, allow_unused=True))


def _twin(model: nn.Module) -> nn.Module:
    """The same parameters with running statistics of its own."""
    return copy.deepcopy(model, {id(parameter): parameter for parameter in model.parameters()})


@torch.no_grad()
def _follow(model: nn.Module, twins: Sequence[nn.Module]) -> None:
    """Move the running statistics as if the parts had come one after the other."""
    for norm, *others in zip(batch_norms(model), *map(batch_norms, twins), strict=True):
        if not norm.training:
            continue
        assert norm.momentum is not None
        keep = 1 - norm.momentum
        for name in ("running_mean", "running_var"):
            running = getattr(norm, name)
            before = keep * running
            for other in others:
                running.mul_(keep).add_(getattr(other, name) - before)
        norm.num_batches_tracked += len(others)


def _add(gradients: Sequence[Tensor | None], more: Sequence[Tensor | None]) -> None:
    pairs = [
        (a, b) for a, b in zip(gradients, more, strict=True) if a is not None and b is not None
    ]
    torch._foreach_add_([a for a, _ in pairs], [b for _, b in pairs])
