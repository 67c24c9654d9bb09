"""The losses of the tasks, and the goal of a run.

A loss takes outputs, targets and the share of label smoothing.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

Loss = Callable[[Tensor, Tensor, float], Tensor]


def cross_entropy(
    logits: Float[Tensor, "B classes"],
    targets: Int[Tensor, " B"] | Float[Tensor, "B classes"],
    label_smoothing: float,
) -> Float[Tensor, ""]:
    """Mean cross-entropy in float32; smoothing moves that share evenly onto all classes."""
    return F.cross_entropy(logits.float(), targets, label_smoothing=label_smoothing)


def weighted_cross_entropy(weights: Float[Tensor, " classes"]) -> Loss:
    """Cross-entropy in which an image weighs as its class does, a mixed one as its classes do.

    Not torch's `weight`: with label smoothing that gives a rare class's weight to the share that
    smoothing moves onto it from the images of all other classes.
    """

    def loss(logits: Tensor, targets: Tensor, label_smoothing: float) -> Tensor:
        of_classes = weights.to(logits.device)
        each = of_classes[targets] if targets.ndim == 1 else targets @ of_classes
        losses = F.cross_entropy(
            logits.float(), targets, label_smoothing=label_smoothing, reduction="none"
        )
        return (each * losses).mean()

    return loss


def binary_cross_entropy(weights: Float[Tensor, "2 classes"] | None = None) -> Loss:
    """Mean over images and labels; `weights` are those of a label's absence and presence."""

    def loss(logits: Tensor, targets: Tensor, label_smoothing: float) -> Tensor:
        logits = logits.float()
        each = None
        if weights is not None:
            absent, present = weights.to(logits.device)
            each = absent.lerp(present, targets)
        smooth = targets.lerp(targets.new_tensor(0.5), label_smoothing)
        return F.binary_cross_entropy_with_logits(logits, smooth, weight=each)

    return loss


def squared_error(mean: Float[Tensor, " values"], std: Float[Tensor, " values"]) -> Loss:
    """Mean squared error of standardised values: an output `y` predicts `mean + std * y`."""

    def loss(outputs: Tensor, targets: Tensor, label_smoothing: float) -> Tensor:
        wanted = (targets - mean.to(targets.device)) / std.to(targets.device)
        return F.mse_loss(outputs.float(), wanted)

    return loss


Evaluate = Callable[[nn.Module], Iterator[tuple[str, float]]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Goal:
    """Loss of a run, and the metric that chooses its best weights on held-out images."""

    loss: Loss = cross_entropy
    chosen_by: str = "accuracy"
    """Name of a metric that `Evaluate` yields; more is better."""
    noise: Callable[[float], float] = lambda value: 0.0
    """Standard error of that value: weights that are worse by less count as equal."""


ACCURACY = Goal()
"""Cross-entropy, and the best accuracy."""
