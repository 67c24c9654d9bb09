"""One update: forward, loss, backward, clip, step."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer

from vitlab.data.loading.batch import Batch
from vitlab.errors import Diverged
from vitlab.machine.device import dtype_of
from vitlab.training.config import TrainConfig
from vitlab.training.loss import Loss, cross_entropy
from vitlab.training.optim import sharpness_aware
from vitlab.training.parallel_halves import backward_side_by_side, parts_of
from vitlab.training.state import TrainState


@dataclass(frozen=True, slots=True)
class StepStats:
    """What one update measured."""

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
    grad_norm = clip_grad_norm_(state.model.parameters(), limit)
    overflow = state.scaler.is_enabled() and not grad_norm.isfinite()
    if not (loss.isfinite() and (grad_norm.isfinite() or overflow)):
        raise Diverged(state.step + 1, loss.item(), grad_norm.item(), batch.index.tolist())
    for optimizer in learning:
        if not overflow:  # clipping has spread it to the gradients of all optimizers
            state.scaler.step(optimizer)
        optimizer.zero_grad(set_to_none=True)
    state.scaler.update()
    if state.ema is not None:
        state.ema.update(state.model, state.step)
    state.step += 1
    return StepStats(loss, grad_norm)


def _has_gradients(optimizer: Optimizer) -> bool:
    return any(p.grad is not None for group in optimizer.param_groups for p in group["params"])


def backward(
    state: TrainState, batch: Batch, config: TrainConfig, loss_of: Loss = cross_entropy
) -> Tensor:
    """Gradients of the batch's mean loss, computed in as many parts as the config says."""
    at_once = parts_of(state.model, batch, config)
    if at_once > 1:
        smoothing = config.label_smoothing
        return backward_side_by_side(state.model, batch, at_once, loss_of, smoothing)
    total = torch.zeros((), device=batch.images.device)
    parts = max(config.accumulate, config.ghost_batches)
    device = batch.images.device
    dtype = dtype_of(config.precision, device)
    autocast = torch.autocast(device.type, dtype, enabled=dtype != torch.float32)
    for images, targets in zip(batch.images.chunk(parts), batch.targets.chunk(parts), strict=True):
        with autocast:
            logits = state.forward(images)
        loss = loss_of(logits, targets, config.label_smoothing) / parts
        state.scaler.scale(loss).backward()
        total += loss.detach()
    return total
