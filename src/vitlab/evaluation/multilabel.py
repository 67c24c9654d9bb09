"""Evaluate any number of labels per image: each label by itself, and all of them together.

Average precision is the mean, over the images that have a label, of the precision among those
ranked as high or higher: the area under the precision-recall curve, without interpolation.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional as F

from vitlab.config import to_dict
from vitlab.errors import InputError
from vitlab.evaluation.classification import Batches, Outcome, collect
from vitlab.evaluation.metrics import (
    between,
    bootstrap_interval,
    check_finite,
    mean_over_classes,
    share_text,
)
from vitlab.objectives.objective import Table
from vitlab.task import THRESHOLD

Scores = Float[np.ndarray, "B classes"]
Truth = Bool[np.ndarray, "B classes"]


@dataclass(frozen=True, kw_only=True, slots=True)
class LabelMetrics:
    """Metrics of one label; a ratio whose denominator is zero is None."""

    label: str
    average_precision: float | None
    precision: float | None
    recall: float | None
    f1: float | None
    support: int
    """Number of images with the label."""


@dataclass(frozen=True, kw_only=True, eq=False)
class MultiLabelEvaluation:
    """Metrics of the predictions."""

    task: ClassVar[str] = "multi-label"
    images: int
    labels: tuple[str, ...]
    threshold: float
    map: float
    """Mean of the labels' average precisions, over labels with any image."""
    interval: tuple[float, float]
    """95 % confidence interval of `map`, by drawing images with replacement."""
    chance: float
    """`map` of uninformed predictions: the mean share of images with a label."""
    micro_f1: float | None
    macro_f1: float | None
    exact: float
    """Share of the images whose predicted labels are exactly the true ones."""
    loss: float
    classes: tuple[LabelMetrics, ...]

    @property
    def figures(self) -> dict[str, float]:
        """Main metrics by name."""
        return {"map": self.map, "loss": self.loss}

    @property
    def headline(self) -> str:
        """One line with the mean average precision and its interval."""
        low, high = self.interval
        images = f"{self.images:,} images"
        return f"mean average precision {self.map:.2%} ({low:.1%} to {high:.1%}, {images})"

    @property
    def lines(self) -> list[tuple[str, str]]:
        """Names and values of the metrics, as text."""
        interval = between(self.interval, "{:.2%}".format)
        return [
            ("mean average precision", f"{self.map:.2%}{interval}, by chance {self.chance:.2%}"),
            ("micro F1", f"{share_text(self.micro_f1)} (labels from {self.threshold:.0%} on)"),
            ("macro F1", share_text(self.macro_f1)),
            ("all labels right", f"{self.exact:.2%}"),
            ("loss", f"{self.loss:.4f}"),
        ]

    @property
    def table(self) -> Table:
        """Metrics of each label that has images."""
        present = [item for item in self.classes if item.support]
        shares = [(x.average_precision, x.precision, x.recall, x.f1) for x in present]
        return Table(
            columns=("label", "average precision", "precision", "recall", "F1", "images"),
            rows=tuple(
                (item.label, *map(share_text, parts), str(item.support))
                for item, parts in zip(present, shares, strict=True)
            ),
            strength=tuple(item.average_precision or 0.0 for item in present),
        )

    def to_dict(self) -> dict[str, Any]:
        """All values, as JSON-serialisable types."""
        return {
            "task": self.task,
            "images": self.images,
            "threshold": self.threshold,
            "map": self.map,
            "interval": list(self.interval),
            "chance": self.chance,
            "micro_f1": self.micro_f1,
            "macro_f1": self.macro_f1,
            "exact": self.exact,
            "loss": self.loss,
            "classes": [to_dict(item) for item in self.classes],
        }


def evaluate_labels(
    outcome: Outcome, labels: Sequence[str], *, threshold: float = THRESHOLD
) -> MultiLabelEvaluation:
    """Metrics of the predictions; a label is predicted from a probability of `threshold` on."""
    check_finite(outcome.logits)
    if len(labels) != outcome.logits.shape[1]:
        raise InputError(f"{len(labels)} labels for logits of {outcome.logits.shape[1]}")
    scores, truth = outcome.logits.double().numpy(), outcome.labels.numpy()
    given = 1 / (1 + np.exp(-scores)) >= threshold
    classes = tuple(
        _label_metrics(label, scores[:, i], truth[:, i], given[:, i])
        for i, label in enumerate(labels)
    )
    right, called, support = int((given & truth).sum()), int(given.sum()), int(truth.sum())
    return MultiLabelEvaluation(
        images=len(outcome),
        labels=tuple(labels),
        threshold=threshold,
        map=mean_average_precision(scores, truth),
        interval=bootstrap_interval(
            lambda rows: mean_average_precision(scores[rows], truth[rows]),
            len(outcome),
            columns=len(labels),
        ),
        chance=float(truth.mean(axis=0)[truth.any(axis=0)].mean()) if truth.any() else 0.0,
        micro_f1=_ratio(2 * right, called + support),
        macro_f1=mean_over_classes([item.f1 for item in classes if item.support]),
        exact=float((given == truth).all(axis=1).mean()),
        loss=label_loss(outcome),
        classes=classes,
    )


@dataclass(frozen=True, kw_only=True)
class LabelEvaluator:
    """Loss and mean average precision of one split, for monitoring in a training run."""

    batches: Callable[[], Batches]

    def run(self, model: nn.Module) -> Iterator[tuple[str, float]]:
        """Evaluate once, and yield `loss` and `map`."""
        outcome = collect(model, self.batches())
        check_finite(outcome.logits)
        yield "loss", label_loss(outcome)
        yield (
            "map",
            mean_average_precision(outcome.logits.double().numpy(), outcome.labels.numpy()),
        )


def label_loss(outcome: Outcome) -> float:
    """Mean binary cross-entropy over images and labels, in nats."""
    logits, truth = outcome.logits.double(), outcome.labels.double()
    return float(F.binary_cross_entropy_with_logits(logits, truth))


def mean_average_precision(scores: Scores, truth: Truth) -> float:
    """Mean over the labels with any image; 0 if there are none."""
    return mean_over_classes(average_precisions(scores, truth)) or 0.0


def average_precisions(scores: Scores, truth: Truth) -> list[float | None]:
    """Average precision of each label; None without images. Images of equal score share a rank."""
    order = np.argsort(-scores, axis=0, kind="stable")
    ranked = np.take_along_axis(scores, order, axis=0)
    hits = np.take_along_axis(truth, order, axis=0)
    found = hits.cumsum(axis=0)
    last = _last_of_equals(ranked)
    precision = np.take_along_axis(found, last, axis=0) / (last + 1)
    support = hits.sum(axis=0)
    total = (precision * hits).sum(axis=0)
    return [float(t / s) if s else None for t, s in zip(total, support, strict=True)]


def _last_of_equals(ranked: Scores) -> NDArray[np.int64]:
    """For each rank the last one with the same score."""
    rows = np.arange(len(ranked))[:, None]
    ends = np.ones(ranked.shape, np.bool_)
    ends[:-1] = ranked[:-1] != ranked[1:]
    places = np.where(ends, rows, len(ranked))
    return np.minimum.accumulate(places[::-1], axis=0)[::-1]


def _label_metrics(
    label: str,
    scores: Float[np.ndarray, " B"],
    truth: Bool[np.ndarray, " B"],
    given: Bool[np.ndarray, " B"],
) -> LabelMetrics:
    right, called, support = int((given & truth).sum()), int(given.sum()), int(truth.sum())
    return LabelMetrics(
        label=label,
        average_precision=average_precisions(scores[:, None], truth[:, None])[0],
        precision=_ratio(right, called),
        recall=_ratio(right, support),
        f1=_ratio(2 * right, called + support),
        support=support,
    )


def worst_labels(outcome: Outcome, count: int) -> list[int]:
    """Rows by the loss of their worst label, the largest first; only those with a mistake."""
    logits = outcome.logits.double()
    each = F.binary_cross_entropy_with_logits(logits, outcome.labels.double(), reduction="none")
    wrong = ((logits >= 0) != outcome.labels).any(dim=1)
    order = torch.argsort(each.amax(dim=1), descending=True, stable=True)
    return order[wrong[order]][:count].tolist()


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None
