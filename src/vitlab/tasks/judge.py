"""How the answers of each task are judged: by `train` at its end, and by `evaluate`."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from vitlab.data.images import ImageSet
from vitlab.evaluate.calibration import Temperature
from vitlab.evaluate.classify import Outcome, evaluate
from vitlab.evaluate.multilabel import evaluate_labels
from vitlab.evaluate.regress import evaluate_values
from vitlab.kinds import Task
from vitlab.tasks.report import Judged, mistakes_in, wrong_labels_in, wrong_values_in
from vitlab.tasks.report.content import Mistake

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
