"""One update: forward, loss, backward, clip, step."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer

from vitlab.data.loader import Batch
from vitlab.errors import Diverged
from vitlab.machine.device import dtype_of, parts_at_once
from vitlab.machine.world import whole
from vitlab.models.summary import summary
from vitlab.models.vit import VisionTransformer, logits_of
from vitlab.nn.draws import computing_rows
from vitlab.training.batch_pieces import piece_of
from vitlab.training.config import TrainConfig
from vitlab.training.loss import Loss, cross_entropy
from vitlab.training.optim import optimizer_flops, sharpness_aware
from vitlab.training.shards import backward_by_shards
from vitlab.training.state import TrainState, autocast
from vitlab.training.trainable import passes


@dataclass(frozen=True, slots=True)
class StepStats:
    """Loss and gradient norm of one update."""

    loss: Tensor
    grad_norm: Tensor


def train_step(
    state: TrainState,
    batch: Batch,
    config: TrainConfig,
    *,
    lr_factor: float,
    loss_of: Loss = cross_entropy,
) -> StepStats:
    """Update `state` in place with one batch and return what was measured."""
    for optimizer, peaks in zip(state.optimizers, state.peak_lrs, strict=True):
        for group, peak in zip(optimizer.param_groups, peaks, strict=True):
            group["lr"] = peak * lr_factor
    gradients: Callable[[], Tensor] = partial(backward, state, batch, config, loss_of)
    if config.optimizer.sam:
        gradients = sharpness_aware(state.model, gradients, config.optimizer.sam)
    loss = gradients()
    learning = [optimizer for optimizer in state.optimizers if _has_gradients(optimizer)]
    for optimizer in learning:
        state.scaler.unscale_(optimizer)
    limit = config.optimizer.clip_norm or float("inf")
    grad_norm = whole(clip_grad_norm_(state.model.parameters(), limit))
    overflow = state.scaler.is_enabled() and not grad_norm.isfinite()
    if not (loss.isfinite() and (grad_norm.isfinite() or overflow)):
        raise Diverged(state.step + 1, _not_finite(loss, grad_norm, batch.index.tolist()))
    for optimizer in learning:
        if not overflow:  # clipping has spread it to the gradients of all optimizers
            state.scaler.step(optimizer)
        optimizer.zero_grad(set_to_none=True)
    state.scaler.update()
    if state.ema is not None:
        state.ema.update(state.model, state.step)
    state.step += 1
    return StepStats(loss, grad_norm)


def _not_finite(loss: Tensor, grad_norm: Tensor, images: Sequence[int]) -> str:
    shown = ", ".join(map(str, images[:8])) + (", …" if len(images) > 8 else "")
    return (
        f"loss {loss.item():.4g}, gradient norm {grad_norm.item():.4g}, "
        f"in a batch of {len(images)} training images (numbers {shown})"
    )


def _has_gradients(optimizer: Optimizer) -> bool:
    return any(p.grad is not None for group in optimizer.param_groups for p in group["params"])


def backward(
    state: TrainState, batch: Batch, config: TrainConfig, loss_of: Loss = cross_entropy
) -> Tensor:
    """Gradients of the batch's mean loss, computed in the number of parts of the config."""
    if config.shards:
        return backward_by_shards(state, batch, config, loss_of)
    if state.world.size > 1:
        return _backward_together(state, batch, config, loss_of)
    at_once = parts_of(state.model, batch, config)
    if at_once > 1:
        smoothing = config.label_smoothing
        return backward_side_by_side(state.model, batch, at_once, loss_of, smoothing)
    total = torch.zeros((), device=batch.images.device)
    parts = config.accumulate
    for images, targets in zip(batch.images.chunk(parts), batch.targets.chunk(parts), strict=True):
        total += _backward_part(state, images, targets, config, loss_of, parts)
    return total


def _backward_part(
    state: TrainState,
    images: Tensor,
    targets: Tensor,
    config: TrainConfig,
    loss_of: Loss,
    divisor: float,
) -> Tensor:
    """Add the gradient of the mean loss of a part, divided; return that loss."""
    with autocast(config, images.device):
        logits = state.forward(images)
    loss = loss_of(logits, targets, config.label_smoothing) / divisor
    state.scaler.scale(loss).backward()
    return loss.detach()


def _backward_together(
    state: TrainState, batch: Batch, config: TrainConfig, loss_of: Loss
) -> Tensor:
    """Gradients of the batch of all processes, of which this one has its rows of each part."""
    piece, processes = piece_of(config, state.world), state.world.size
    parts = [piece.images] * config.accumulate
    # Gradients are averaged over the processes: their sum is that of a loss as many times as large.
    divisor = config.batch_size / (piece.images * processes)
    total = torch.zeros((), device=batch.images.device)
    for number, (images, targets) in enumerate(
        zip(batch.images.split(parts), batch.targets.split(parts), strict=True), start=1
    ):
        last = number == config.accumulate
        with (
            nullcontext() if last else state.unsynced(),
            computing_rows(piece.first, piece.part),
        ):
            total += _backward_part(state, images, targets, config, loss_of, divisor)
    return state.world.sum(total) / processes


# The gradient of a batch from parts that are computed at the same time, each on its own core. Two
# operations at once keep two cores busier than one operation on both, which waits for the slower
# core after every layer. Only where the parts of a batch are independent: no batch norm, and
# nothing random, which threads would draw in any order.

OURS = {
    "stem": ("patch", "resnet", "conv", "shifted"),
    "attention": ("full", "lsa", "sliding", "axial", "sparse", "mean"),
}
"""Parts that are known to draw nothing but dropout."""


def parts_of(model: nn.Module, batch: Batch, config: TrainConfig) -> int:
    """Parts in which the gradient of this batch is computed at the same time; 1: as a whole."""
    special = config.compile or config.recompute_activations or config.accumulate > 1
    dtype = dtype_of(config.precision, batch.images.device)
    if special or dtype != torch.float32 or not independent(model):
        return 1
    return parts_at_once(batch.images.device.type, torch.get_num_threads(), len(batch.images))


def independent(model: nn.Module) -> bool:
    """True if the output for an image depends on it and the weights alone."""
    if not isinstance(model, VisionTransformer):  # what hides patches draws them
        return False
    settings = model.config
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
    work = _Work(learning, len(batch.images), loss_of, label_smoothing)
    images, targets = batch.images.chunk(parts), batch.targets.chunk(parts)
    with ThreadPoolExecutor(parts, initializer=torch.set_num_threads, initargs=(1,)) as threads:
        found = list(threads.map(work.gradients, [model] * parts, images, targets))
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


def _add(gradients: Sequence[Tensor | None], more: Sequence[Tensor | None]) -> None:
    pairs = [
        (a, b) for a, b in zip(gradients, more, strict=True) if a is not None and b is not None
    ]
    torch._foreach_add_([a for a, _ in pairs], [b for _, b in pairs])


class Meter:
    """FLOPs of an update: its passes through the model, Newton-Schulz, and a teacher's passes.

    Evaluations and speed trials are not counted.
    """

    def __init__(self, config: TrainConfig, *, teacher_flops: int = 0) -> None:
        """`teacher_flops` are those of a teacher for one image."""
        self._config = config
        self._teacher = teacher_flops
        self._known: dict[tuple[int, ...], tuple[int, int]] = {}

    def flops(self, model: nn.Module, shape: Sequence[int], *, head_alone: bool) -> int:
        """Of an update that was just made with images of this shape `(B, C, H, W)`."""
        batch, *image = shape
        if (key := (*image, int(head_alone))) not in self._known:
            self._known[key] = self._count(model, image, head_alone)
        each, once = self._known[key]
        return batch * each + once

    def _count(self, model: nn.Module, image: Sequence[int], head_alone: bool) -> tuple[int, int]:
        """For each image of an update, and once for the update."""
        config = self._config
        found = summary(model, (1, *image), depth=1)
        each = passes(config, head_alone=head_alone) * found.flops
        if config.recompute_activations and not head_alone:
            each += (2 if config.optimizer.sam else 1) * (found.encoder_flops or 0)
        return each + self._teacher, optimizer_flops(model, config.optimizer)
