"""What a run trains for: the loss of its task, how it is watched, and what is done at the end."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from vitlab.data.images import ImageSet, task_of
from vitlab.data.split import class_weights, image_weights, label_weights
from vitlab.errors import ConfigError, DataError
from vitlab.evaluation.calibration import Temperature
from vitlab.evaluation.classification import Batches, Evaluator, Outcome, evaluate
from vitlab.evaluation.multilabel import evaluate_labels
from vitlab.evaluation.regression import evaluate_values
from vitlab.evaluation.watch import LabelWatch, ValueWatch
from vitlab.report.run import Judged, mistakes_in, wrong_labels_in, wrong_values_in
from vitlab.report.run.content import Mistake
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
class Aim:
    """A task as a run sees it."""

    goal: Goal
    watch: Callable[[Callable[[], Batches]], Evaluate]
    """What looks at held-out images in the course of the run."""
    weights: Tensor | None = None
    """How often each training image is drawn; None: once an epoch."""
    settle: Callable[[nn.Module], None] = lambda model: None
    """Make a trained model answer in the unit of the task."""
    targets: Mapping[str, Any] | None = None
    """What a bundle says of the values that were trained."""


def aim_for(
    task: Task, images: ImageSet, held_out: ImageSet | None, classes: int, config: TrainConfig
) -> Aim:
    """The aim of a run on these training images, watched on those held out."""
    labels = images.labels
    if task_of(labels) != task:
        raise DataError(f"a {task} source whose images have {task_of(labels)} labels")
    weights = image_weights(labels) if config.balance == "sampling" else None
    make = {"single-label": _classes, "multi-label": _labels, "regression": _values}[task]
    aim = make(labels, classes, config, weights)
    if task == "single-label" and held_out is not None:
        chance = accuracy_noise(held_out.labels, balanced=aim.goal.chosen_by == "balanced")
        return replace(aim, goal=replace(aim.goal, noise=chance))
    return aim


def accuracy_noise(labels: Tensor, *, balanced: bool) -> Callable[[float], float]:
    """The standard error of an accuracy on images with these labels, or of a mean recall."""
    counts = labels.unique(return_counts=True)[1].double()
    images = len(counts) ** 2 / (1 / counts).sum().item() if balanced else len(labels)

    def error(accuracy: float) -> float:
        # Laplace's rule: all of a few images right does not mean that all ever will be.
        expected = (accuracy * images + 1) / (images + 2)
        return math.sqrt(expected * (1 - expected) / images)

    return error


def _classes(labels: Tensor, classes: int, config: TrainConfig, weights: Tensor | None) -> Aim:
    loss: Loss = cross_entropy
    if config.balance == "loss":
        loss = weighted_cross_entropy(class_weights(labels, classes))
    alike = config.balance != "none"  # who balances the classes wants them judged alike
    return Aim(
        goal=Goal(loss=loss, chosen_by="balanced" if alike else "accuracy"),
        watch=lambda batches: Evaluator(batches=batches, classes=classes, balanced=alike).run,
        weights=weights,
    )


def _labels(labels: Tensor, classes: int, config: TrainConfig, weights: Tensor | None) -> Aim:
    balance = label_weights(labels) if config.balance == "loss" else None
    return Aim(
        goal=Goal(loss=binary_cross_entropy(balance), chosen_by="map"),
        watch=lambda batches: LabelWatch(batches=batches).run,
        weights=weights,
    )


def _values(labels: Tensor, classes: int, config: TrainConfig, weights: Tensor | None) -> Aim:
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
        """Fold mean and deviation into the head, so that nobody can forget them."""
        head: nn.Linear = cast(Any, model).head
        with torch.no_grad():
            scale, centre = std.to(head.weight.device), mean.to(head.weight.device)
            head.weight.mul_(scale[:, None])
            head.bias.mul_(scale).add_(centre)

    return Aim(
        goal=Goal(loss=squared_error(mean, std), chosen_by="r2"),
        watch=lambda batches: ValueWatch(batches=batches, mean=mean, std=std).run,
        settle=settle,
        targets={"mean": mean.tolist(), "std": std.tolist()},
    )


# How the answers of each task are judged: by `train` at its end, and by `evaluate`.

Worth = Callable[[Outcome, Sequence[str], Temperature | None], Judged]


@dataclass(frozen=True, kw_only=True)
class Judge:
    """What the answers of a task are worth, and which are the worst."""

    worth: Worth
    figures: Callable[[Any], dict[str, float]]
    """The numbers that a bundle carries, of what `worth` gives."""
    mistakes: Callable[[Outcome, ImageSet, Sequence[str]], tuple[Mistake, ...]]
    calibrated: bool = False
    """Whether a temperature makes sense."""


JUDGES: dict[Task, Judge] = {
    "single-label": Judge(
        worth=lambda outcome, labels, temperature: evaluate(
            outcome, labels, temperature=temperature
        ),
        figures=lambda found: {"accuracy": found.accuracy, "loss": found.loss},
        mistakes=mistakes_in,
        calibrated=True,
    ),
    "multi-label": Judge(
        worth=lambda outcome, labels, _: evaluate_labels(outcome, labels),
        figures=lambda found: {"map": found.map, "loss": found.loss},
        mistakes=wrong_labels_in,
    ),
    "regression": Judge(
        worth=lambda outcome, labels, _: evaluate_values(outcome, labels),
        figures=lambda found: {"r2": found.r2, "mae": found.mae},
        mistakes=wrong_values_in,
    ),
}
