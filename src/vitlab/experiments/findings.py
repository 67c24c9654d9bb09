"""What an experiment came to, so far or altogether."""

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from vitlab.config import to_dict
from vitlab.experiments.conclusion import conclusion, failed, overfitting, uneven
from vitlab.experiments.folder import Record
from vitlab.experiments.result import Result
from vitlab.experiments.spec import Experiment
from vitlab.experiments.statistics import Difference, Summary, differences, summaries

SMOKE = "This is a smoke run with tiny models and a few steps: nothing can be concluded from it."


@dataclass(frozen=True, kw_only=True)
class Findings:
    """Results, what they say, and what failed."""

    record: Record
    folder: Path
    results: tuple[Result, ...]
    failures: dict[str, str]
    """Trainings that ended in an error, as `ARM, seed N`, with the reason."""

    @property
    def experiment(self) -> Experiment:
        """What was asked."""
        return self.record.experiment

    @cached_property
    def summaries(self) -> dict[str, Summary]:
        """Mean, deviation and cost of each arm that has a result."""
        return summaries(self.experiment, self.results)

    @cached_property
    def differences(self) -> list[Difference]:
        """Of each arm to those it is against, with intervals."""
        failed = [name.rpartition(", seed ")[0] for name in self.failures]
        found = differences(self.experiment, self.results, failed)
        return [replace(item, verdict="open") for item in found] if self.record.smoke else found

    @cached_property
    def conclusion(self) -> list[str]:
        """Sentences that follow from the intervals; a smoke run has no conclusion."""
        if self.record.smoke:
            return [SMOKE, *failed(self.failures)]
        said = conclusion(self.experiment, self.differences)
        return [
            *said,
            *overfitting(self.experiment, self.summaries),
            *uneven(self.experiment, self.summaries),
            *failed(self.failures),
        ]

    @property
    def report(self) -> Path:
        """The page."""
        return self.folder / "report.html"

    @property
    def trainings(self) -> int:
        """How many there are in all."""
        return len(self.experiment.trainings(self.record.seeds))

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON-able values, but for which image was told right."""
        return {
            "experiment": self.experiment.name,
            "title": self.experiment.title,
            "data": self.record.data,
            "minutes": self.record.minutes,
            "smoke": self.record.smoke,
            "precision": self.record.precision,
            "seeds": self.record.seeds,
            "margin": self.experiment.margin,
            "measure": self.experiment.measure,
            "command": self.record.command,
            "vitlab": self.record.version,
            "arms": [
                {
                    **to_dict(found),
                    "title": self.experiment.arm(name).shown,
                    "changes": self.experiment.arm(name).changes,
                    "mean": found.mean,
                    "deviation": found.deviation,
                }
                for name, found in self.summaries.items()
            ],
            "differences": [to_dict(item) for item in self.differences],
            "conclusion": self.conclusion,
            "trainings": [
                {key: value for key, value in to_dict(result).items() if key != "right"}
                for result in self.results
            ],
            "failures": self.failures,
            "report": str(self.report),
        }
