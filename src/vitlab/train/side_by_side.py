"""The gradient of a batch from parts that are computed at the same time, each with its own core.

Two operations at once keep two cores busier than one operation on both, which waits for the slower
core after every layer. Only where the parts of a batch know nothing of each other: no batch norm,
and nothing random, which threads would draw in any order.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from vitlab.data.batch import Batch
from vitlab.models.config import ViTConfig
from vitlab.models.vit import logits_of
from vitlab.runtime import parts_at_once
from vitlab.train.config import TrainConfig
from vitlab.train.loss import Loss

OURS = {
    "stem": ("patch", "resnet", "conv", "shifted"),
    "attention": ("full", "lsa", "sliding", "axial", "sparse"),
}
"""Parts that are known to draw nothing but dropout."""


def parts_of(model: nn.Module, batch: Batch, config: TrainConfig) -> int:
    """Parts in which the gradient of this batch is computed at the same time; 1: as a whole."""
    special = config.compile or config.recompute_activations or config.accumulate > 1
    if special or config.precision != "float32" or not independent(model):
        return 1
    return parts_at_once(batch.images.device.type, torch.get_num_threads(), len(batch.images))


def independent(model: nn.Module) -> bool:
    """Whether what becomes of an image depends on it and the weights alone."""
    settings = getattr(model, "config", None)
    if not isinstance(settings, ViTConfig):
        return False
    if settings.dropout or settings.attention_dropout or settings.drop_path:
        return False
    if any(getattr(settings, part) not in names for part, names in OURS.items()):
        return False
    return not any(isinstance(module, _BatchNorm) for module in model.modules())


def backward_side_by_side(
    model: nn.Module, batch: Batch, parts: int, loss_of: Loss, label_smoothing: float
) -> Tensor:
    """Set the gradients of the batch's mean loss, and return the loss."""
    learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
    work = _Work(model, learning, len(batch.images), loss_of, label_smoothing)
    with ThreadPoolExecutor(parts, initializer=torch.set_num_threads, initargs=(1,)) as threads:
        found = list(
            threads.map(work.gradients, batch.images.chunk(parts), batch.targets.chunk(parts))
        )
    (total, gradients), *others = found
    for loss, more in others:
        total = total + loss
        _add(gradients, more)
    for parameter, gradient in zip(learning, gradients, strict=True):
        parameter.grad = gradient
    return total


@dataclass(frozen=True, slots=True)
class _Work:
    model: nn.Module
    learning: Sequence[nn.Parameter]
    images: int
    """Of the whole batch."""
    loss_of: Loss
    """A mean over images."""
    label_smoothing: float

    def gradients(self, images: Tensor, targets: Tensor) -> tuple[Tensor, list[Tensor | None]]:
        """The part's share of the mean loss, and of its gradient."""
        loss = self.loss_of(logits_of(self.model)(images), targets, self.label_smoothing)
        loss = loss * (len(images) / self.images)
        return loss.detach(), list(torch.autograd.grad(loss, self.learning, allow_unused=True))


def _add(gradients: Sequence[Tensor | None], more: Sequence[Tensor | None]) -> None:
    pairs = [
        (a, b) for a, b in zip(gradients, more, strict=True) if a is not None and b is not None
    ]
    torch._foreach_add_([a for a, _ in pairs], [b for _, b in pairs])
