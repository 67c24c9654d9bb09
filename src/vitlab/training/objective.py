"""Learning of each kind of label: its loss, its metrics on held-out images, and its balance."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from vitlab.data.images import ImageSet, task_of
from vitlab.data.split import class_weights, image_weights, label_weights
from vitlab.errors import ConfigError, DataError
from vitlab.evaluation.classification import Batches, Evaluator
from vitlab.evaluation.multilabel import LabelEvaluator
from vitlab.evaluation.regression import ValueEvaluator
from vitlab.objectives.objective import LABEL_TYPES, objective_of
from vitlab.task import Task
from vitlab.training.config import TrainConfig
from vitlab.training.loss import (
    Evaluate,
    Goal,
    Loss,
    binary_cross_entropy,
    cross_entropy,
    squared_error,
    weighted_cross_entropy,
)


@dataclass(frozen=True, kw_only=True)
class Learning:
    """An objective as a training run uses it."""

    goal: Goal
    evaluator: Callable[[Callable[[], Batches]], Evaluate]
    """Evaluation of held-out images during the run."""
    weights: Tensor | None = None
    """Sampling weight of each training image; None: each once an epoch."""
    settle: Callable[[nn.Module], None] = lambda model: None
    """Convert the outputs of a trained model to the unit of the labels."""
    targets: Mapping[str, Any] | None = None
    """Statistics of trained values, for the bundle."""


def learning_for(
    task: Task, images: ImageSet, held_out: ImageSet | None, classes: int, config: TrainConfig
) -> Learning:
    """Loss and metrics of a run on these training images; `held_out` are evaluated."""
    objective, labels = objective_of(task), images.labels
    if str(labels.dtype) != f"torch.{objective.label_type}":
        raise DataError(
            f"a {task} source whose images have {task_of(labels)} labels; "
            f"valid: {objective.label_type} ({LABEL_TYPES[objective.label_type]})"
        )
    known = None if held_out is None else held_out.labels
    found: Learning = objective.learning(labels, known, classes, config)
    return found


def _sampling(labels: Tensor, config: TrainConfig) -> Tensor | None:
    return image_weights(labels) if config.balance == "sampling" else None


def accuracy_noise(labels: Tensor, *, balanced: bool) -> Callable[[float], float]:
    """The standard error of an accuracy on images with these labels, or of a mean recall."""
    counts = labels.unique(return_counts=True)[1].double()
    images = len(counts) ** 2 / (1 / counts).sum().item() if balanced else len(labels)

    def error(accuracy: float) -> float:
        # Laplace's rule: all of a few images right does not mean that all ever will be.
        expected = (accuracy * images + 1) / (images + 2)
        return math.sqrt(expected * (1 - expected) / images)

    return error


def learn_classes(
    labels: Tensor, held_out: Tensor | None, classes: int, config: TrainConfig
) -> Learning:
    """Cross-entropy; the best accuracy, or mean recall where classes are balanced."""
    loss: Loss = cross_entropy
    if config.balance == "loss":
        loss = weighted_cross_entropy(class_weights(labels, classes))
    balanced = config.balance != "none"  # balanced classes count equally in the evaluation too
    goal = Goal(loss=loss, chosen_by="balanced" if balanced else "accuracy")
    if held_out is not None:
        goal = replace(goal, noise=accuracy_noise(held_out, balanced=balanced))
    return Learning(
        goal=goal,
        evaluator=lambda batches: (
            Evaluator(batches=batches, classes=classes, balanced=balanced).run
        ),
        weights=_sampling(labels, config),
    )


def learn_labels(
    labels: Tensor, held_out: Tensor | None, classes: int, config: TrainConfig
) -> Learning:
    """Binary cross-entropy; the best mean average precision."""
    balance = label_weights(labels) if config.balance == "loss" else None
    return Learning(
        goal=Goal(loss=binary_cross_entropy(balance), chosen_by="map"),
        evaluator=lambda batches: LabelEvaluator(batches=batches).run,
        weights=_sampling(labels, config),
    )


def learn_values(
    labels: Tensor, held_out: Tensor | None, classes: int, config: TrainConfig
) -> Learning:
    """Squared error of standardised values; the best share of variance explained."""
    if config.balance != "none":
        raise ConfigError(f"balance={config.balance} is for classes, not for values; valid: none")
    if config.augment.cutmix:
        raise ConfigError(
            f"augment.cutmix={config.augment.cutmix}: a piece of an image does not have its share "
            "of a value; valid: 0, or mixup"
        )
    mean, std = labels.double().mean(dim=0), labels.double().std(dim=0, correction=0)
    if not bool((std > 0).all()):
        raise DataError("all training images have the same value: nothing is to be learned")
    mean, std = mean.float(), std.float()

    def settle(model: nn.Module) -> None:
        """Fold mean and deviation into the head: the model then predicts in the unit."""
        head: nn.Linear = cast(Any, model).head
        with torch.no_grad():
            scale, centre = std.to(head.weight.device), mean.to(head.weight.device)
            for parameter in (head.weight, head.bias):
                parameter.mul_(scale.view(-1, *(1,) * (parameter.ndim - 1)))
            head.bias.add_(centre.view(-1, *(1,) * (head.bias.ndim - 1)))

    return Learning(
        goal=Goal(loss=squared_error(mean, std), chosen_by="r2"),
        evaluator=lambda batches: ValueEvaluator(batches=batches, mean=mean, std=std).run,
        settle=settle,
        targets={"mean": mean.tolist(), "std": std.tolist()},
    )
