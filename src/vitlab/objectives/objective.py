"""One kind of label as one object: activation, loss, metrics, headline, and its part of a report.

Imports no torch. What needs higher packages is written `module:attribute` and imported when used,
as in `vitlab.registry`; a kind of your own passes the objects themselves.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from vitlab.registry import OBJECTIVES, resolve_entry
from vitlab.task import Task

Numbers = NDArray[np.float32]
LABEL_TYPES = {
    "int64": "one class an image",
    "bool": "a row of marks",
    "float32": "a row of values",
}
"""Tensor types of labels."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """Metrics of each class or label, for a terminal."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    strength: tuple[float, ...]
    """Of each row; of many rows only the weakest are shown."""


@runtime_checkable
class Metrics(Protocol):
    """Result of an evaluation, whatever the kind of label."""

    @property
    def task(self) -> str:
        """Name of the objective."""

    @property
    def images(self) -> int:
        """Number of evaluated images."""

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the outputs."""

    @property
    def figures(self) -> dict[str, float]:
        """Main metrics by name: those that a bundle stores."""

    @property
    def headline(self) -> str:
        """One line with the main metric and its interval."""

    @property
    def lines(self) -> list[tuple[str, str]]:
        """Names and values of the metrics, as text."""

    @property
    def table(self) -> Table | None:
        """Metrics of each class or label; None: no table."""

    def to_dict(self) -> dict[str, Any]:
        """All values, as JSON-serialisable types."""


@dataclass(frozen=True, kw_only=True)
class Objective:
    """A kind of label: how it is learnt, evaluated, predicted and reported."""

    name: Task
    description: str
    """Labels of an image, in a few words."""
    outputs: str
    """Plural noun for the outputs of the head: classes, labels, values."""
    label_type: Literal["int64", "bool", "float32"]
    """Type of the label tensor, a key of `LABEL_TYPES`."""
    prediction: Literal["best", "likely", "values"]
    """Reported outputs: the `top` most probable; all above a threshold; or all, as values."""
    activate: Callable[[Any], Any]
    """Predictions from a tensor of logits [*B, outputs]: probabilities, or values in their unit."""
    activate_array: Callable[[Numbers], Numbers] | None = None
    """`activate` without torch, for exported models; None: `activate` on a tensor."""
    learn: str | Callable[..., Any]
    """`vitlab.training.objective.Learning` of training labels, held-out labels, outputs, config."""
    evaluate: str | Callable[..., Metrics]
    """Metrics of an outcome and the names of its outputs; if calibrated, with `temperature=`."""
    view: str | Any
    """`vitlab.report.run.content.View`: this kind's part of a report."""
    calibrated: bool = False
    """True if a temperature can be fitted to the logits."""
    activation: Literal["softmax", "sigmoid", "none"] | None = None
    """Usual name of `activate`; None: it has none."""
    problem_type: str | None = None
    """Name in Hugging Face's `config.json`; None: not named there."""

    @property
    def has_values(self) -> bool:
        """True if outputs are values in a unit, False if they are probabilities."""
        return self.prediction == "values"

    def probabilities(self, logits: Numbers) -> Numbers:
        """Predictions from an array of logits."""
        if self.activate_array is not None:
            return self.activate_array(logits)
        import torch

        return np.asarray(self.activate(torch.from_numpy(logits)).numpy(), dtype=np.float32)

    def learning(self, labels: Any, held_out: Any, outputs: int, config: Any) -> Any:
        """Loss and metrics of a run with these training labels, and held-out labels or None."""
        return resolve_entry(self.learn)(labels, held_out, outputs, config)

    def metrics(self, outcome: Any, labels: Sequence[str], temperature: Any = None) -> Metrics:
        """Evaluate predictions; `labels` are the names of the outputs."""
        scaling = {"temperature": temperature} if self.calibrated else {}
        found: Metrics = resolve_entry(self.evaluate)(outcome, labels, **scaling)
        return found

    @property
    def report(self) -> Any:
        """Its part of a report: a `vitlab.report.run.content.View`."""
        return resolve_entry(self.view)


def objective_of(task: Task) -> Objective:
    """Registered objective of a name."""
    found: Objective = OBJECTIVES[task]
    return found


def softmax(logits: Numbers) -> Numbers:
    """Probabilities of classes that exclude each other."""
    shifted = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(shifted / shifted.sum(axis=-1, keepdims=True), dtype=np.float32)


def sigmoid(logits: Numbers) -> Numbers:
    """Probabilities of labels, each on its own."""
    # Each half where exp cannot overflow.
    small = np.exp(-np.abs(logits))
    return np.asarray(np.where(logits >= 0, 1, small) / (1 + small), dtype=np.float32)


SINGLE_LABEL = Objective(
    name="single-label",
    description="one label for each image",
    outputs="classes",
    label_type="int64",
    prediction="best",
    activate=lambda logits: logits.softmax(dim=-1),
    activate_array=softmax,
    learn="vitlab.training.objective:learn_classes",
    evaluate="vitlab.evaluation.classification:evaluate",
    view="vitlab.report.run.classification:VIEW",
    calibrated=True,
    activation="softmax",
    problem_type="single_label_classification",
)
MULTI_LABEL = Objective(
    name="multi-label",
    description="any number of labels for each image",
    outputs="labels",
    label_type="bool",
    prediction="likely",
    activate=lambda logits: logits.sigmoid(),
    activate_array=sigmoid,
    learn="vitlab.training.objective:learn_labels",
    evaluate="vitlab.evaluation.multilabel:evaluate_labels",
    view="vitlab.report.run.multilabel:VIEW",
    activation="sigmoid",
    problem_type="multi_label_classification",
)
REGRESSION = Objective(
    name="regression",
    description="a number for each image",
    outputs="values",
    label_type="float32",
    prediction="values",
    activate=lambda values: values,
    activate_array=lambda values: values,
    learn="vitlab.training.objective:learn_values",
    evaluate="vitlab.evaluation.regression:evaluate_values",
    view="vitlab.report.run.regression:VIEW",
    activation="none",
    problem_type="regression",
)
