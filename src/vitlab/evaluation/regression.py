"""Evaluate predicted values of images: errors in the values' own unit."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from vitlab.config import to_dict
from vitlab.errors import InputError
from vitlab.evaluation.classification import Batches, Outcome, collect
from vitlab.evaluation.metrics import between, bootstrap_interval, check_finite, number_text

Values = Float[np.ndarray, " B"]
Interval = tuple[float, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class ValueMetrics:
    """Metrics of one value; intervals hold 95 %, by drawing images with replacement."""

    label: str
    mae: float
    """Mean absolute error."""
    mae_interval: Interval
    rmse: float
    """Root of the mean squared error."""
    rmse_interval: Interval
    r2: float | None
    """Share of the variance explained; 0 is no better than the mean. None: all are equal."""
    r2_interval: Interval | None
    spearman: float | None
    """Correlation of the ranks."""
    mean_mae: float
    """Mean absolute error of always predicting the mean."""


@dataclass(frozen=True, kw_only=True, eq=False)
class RegressionEvaluation:
    """Metrics of the predictions, and the predictions themselves."""

    task: ClassVar[str] = "regression"
    images: int
    labels: tuple[str, ...]
    """Name of each value."""
    values: tuple[ValueMetrics, ...]
    truth: Float[Tensor, "B values"]
    predicted: Float[Tensor, "B values"]

    @property
    def r2(self) -> float:
        """Mean over the values."""
        return float(np.mean([item.r2 or 0.0 for item in self.values]))

    @property
    def mae(self) -> float:
        """Mean over the values."""
        return float(np.mean([item.mae for item in self.values]))

    @property
    def figures(self) -> dict[str, float]:
        """Main metrics by name."""
        return {"r2": self.r2, "mae": self.mae}

    @property
    def headline(self) -> str:
        """One line with the mean absolute error of the first value and its interval."""
        first = self.values[0]
        low, high = first.mae_interval
        return (
            f"mean absolute error {first.mae:.4g} ({low:.4g} to {high:.4g}, "
            f"{self.images:,} images), R2 {number_text(first.r2)}; "
            f"always the mean: {first.mean_mae:.4g}"
        )

    @property
    def lines(self) -> list[tuple[str, str]]:
        """Names and values of the metrics, as text."""
        shown: list[tuple[str, str]] = []
        for item in self.values:
            of = "" if len(self.values) == 1 else f" of {item.label}"
            mean = f", always the mean {item.mean_mae:.4g}"
            shown += [
                (f"mean absolute error{of}", f"{item.mae:.4g}{between(item.mae_interval)}{mean}"),
                (f"root mean squared{of}", f"{item.rmse:.4g}{between(item.rmse_interval)}"),
                (f"R2{of}", f"{number_text(item.r2)}{between(item.r2_interval)}"),
                (f"rank correlation{of}", number_text(item.spearman)),
            ]
        return shown

    @property
    def table(self) -> None:
        """None: `lines` has every value."""
        return None

    def to_dict(self) -> dict[str, Any]:
        """Everything but the predictions, as JSON-serialisable types."""
        return {
            "task": self.task,
            "images": self.images,
            "r2": self.r2,
            "mae": self.mae,
            "values": [to_dict(item) for item in self.values],
        }


@dataclass(frozen=True, kw_only=True)
class ValueEvaluator:
    """Errors of values that a model in training predicts standardised."""

    batches: Callable[[], Batches]
    mean: Float[Tensor, " values"]
    std: Float[Tensor, " values"]

    def run(self, model: nn.Module) -> Iterator[tuple[str, float]]:
        """Evaluate once, and yield `loss` as trained, `mae` in the unit, and `r2`."""
        outcome = collect(model, self.batches())
        check_finite(outcome.logits)
        truth = outcome.labels.double()
        predicted = outcome.logits.double() * self.std + self.mean
        yield "loss", float(F.mse_loss(predicted / self.std, truth / self.std))
        yield "mae", float((predicted - truth).abs().mean())
        columns = zip(predicted.unbind(1), truth.unbind(1), strict=True)
        found = [coefficient(a.numpy(), b.numpy()) or 0.0 for a, b in columns]
        yield "r2", sum(found) / len(found)


def evaluate_values(outcome: Outcome, labels: Sequence[str]) -> RegressionEvaluation:
    """Metrics of the predictions."""
    check_finite(outcome.logits)
    if len(labels) != outcome.logits.shape[1]:
        raise InputError(f"{len(labels)} names for {outcome.logits.shape[1]} values")
    predicted, truth = outcome.logits.double().numpy(), outcome.labels.double().numpy()
    return RegressionEvaluation(
        images=len(outcome),
        labels=tuple(labels),
        values=tuple(
            _value_metrics(label, predicted[:, i], truth[:, i]) for i, label in enumerate(labels)
        ),
        truth=outcome.labels,
        predicted=outcome.logits,
    )


def _value_metrics(label: str, predicted: Values, truth: Values) -> ValueMetrics:
    error, count = predicted - truth, len(truth)
    r2 = coefficient(predicted, truth)

    def again(rows: NDArray[np.int64]) -> float:
        found = coefficient(predicted[rows], truth[rows])
        return 0.0 if found is None else found

    return ValueMetrics(
        label=label,
        mae=float(np.abs(error).mean()),
        mae_interval=bootstrap_interval(lambda rows: float(np.abs(error[rows]).mean()), count),
        rmse=float(np.sqrt((error**2).mean())),
        rmse_interval=bootstrap_interval(
            lambda rows: float(np.sqrt((error[rows] ** 2).mean())), count
        ),
        r2=r2,
        r2_interval=None if r2 is None else bootstrap_interval(again, count),
        spearman=spearman(predicted, truth),
        mean_mae=float(np.abs(truth - truth.mean()).mean()),
    )


def coefficient(predicted: Values, truth: Values) -> float | None:
    """R²: one minus the squared error over that of the mean; None if all true values are equal."""
    total = float(((truth - truth.mean()) ** 2).sum())
    return 1.0 - float(((predicted - truth) ** 2).sum()) / total if total else None


def spearman(predicted: Values, truth: Values) -> float | None:
    """Rank correlation, ties sharing their rank; None if one side does not vary."""
    first, second = ranks(predicted), ranks(truth)
    if np.ptp(first) == 0 or np.ptp(second) == 0:
        return None
    return float(np.corrcoef(first, second)[0, 1])


def ranks(values: Values) -> Values:
    """Ranks from 1, the mean rank for ties."""
    _, group, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = counts.cumsum()
    return (ends - (counts - 1) / 2)[group]


def worst_values(outcome: Outcome, count: int) -> list[int]:
    """Rows with the largest errors in units of each value's deviation, the worst first."""
    truth = outcome.labels.double()
    spread = truth.std(dim=0, correction=0).clamp(min=1e-12)
    error = ((outcome.logits.double() - truth) / spread).abs().amax(dim=1)
    return torch.argsort(error, descending=True, stable=True)[:count].tolist()
