"""Findings of an experiment, complete or in progress, and its conclusions in sentences.

Only differences that remain after the correction for several comparisons support a conclusion.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from vitlab.config import to_dict
from vitlab.experiments.estimates import SEED_DEVIATION
from vitlab.experiments.folder import Record, Result
from vitlab.experiments.spec import MOST_STEPS, Experiment
from vitlab.experiments.statistics import Difference, Summary, differences, summaries

ONE_SEED = {"images": "other test images", "draws": "other draws of the few images"}
"""Source of variation of an interval of one seed, in words."""
EVEN = 0.8
"""Share of the largest compute from which on two arms count as equal: steps are whole numbers."""


def conclusion(experiment: Experiment, found: Sequence[Difference]) -> list[str]:
    """A sentence for each conclusive difference, followed by caveats."""
    claimed = [item for item in found if item.verdict != "open"]
    sentences = [_sentence(experiment, item) for item in claimed]
    caveats = (*_caveats(experiment, found), *_once(experiment, claimed))
    return [*sentences, *caveats] if found else []


def uneven(experiment: Experiment, known: Mapping[str, Summary]) -> list[str]:
    """A sentence for each arm that spent less compute than the others, with its share."""
    if experiment.matched != "compute":
        return []
    spent = {n: found.pflops / experiment.arm(n).budget for n, found in known.items()}
    most = max(spent.values(), default=0.0)
    return [
        f"“{experiment.arm(name).shown}” spent {part / most:.1%} of the compute"
        f"{': its steps are limited' if _limited(experiment, known, name) else ''}."
        for name, part in spent.items()
        if part < EVEN * most and experiment.arm(name).how != "test"
    ]


def _limited(experiment: Experiment, known: Mapping[str, Summary], name: str) -> bool:
    """True if an arm reached the maximum number of steps, `MOST_STEPS` times those of the first."""
    first = experiment.arms[0]
    if first.name not in known:
        return False
    steps = {n: known[n].steps / experiment.arm(n).budget for n in (first.name, name)}
    return steps[name] > 0.99 * MOST_STEPS * steps[first.name]


def failed(names: Collection[str]) -> list[str]:
    """A sentence that lists the failed trainings; empty without any."""
    if not names:
        return []
    return [f"Failed, so that differences leave that seed out: {'; '.join(names)}."]


def overfitting(experiment: Experiment, known: Mapping[str, Summary]) -> list[str]:
    """A sentence with training accuracies and their gap to the test accuracy, where measured."""
    parts = [
        f"“{experiment.arm(name).shown}” {100 * found.train_accuracy:.1f} % "
        f"({points(found.train_accuracy - found.mean)})"
        for name, found in known.items()
        if found.train_accuracy is not None and experiment.measure == "accuracy"
    ]
    if not parts:
        return []
    return [f"Accuracy on the training images, and points above the test: {'; '.join(parts)}."]


def sides(experiment: Experiment, item: Difference) -> tuple[str, str]:
    """Titles of the two sides of a comparison."""
    if item.beside:
        names = [experiment.arm(n).shown for n in (item.arm, item.against, *item.beside)]
        return f"{names[0]}, over {names[1]}", f"{names[2]}, over {names[3]}"
    arm, other = (experiment.arm(name) for name in (item.arm, item.against))
    if item.chosen:
        return f"best of {arm.series}: {arm.shown}", f"best of {other.series}: {other.shown}"
    return arm.shown, other.shown


def _sentence(experiment: Experiment, item: Difference) -> str:
    arm, other = (_name(experiment, name, item.chosen) for name in (item.arm, item.against))
    if item.beside:
        two = [_name(experiment, name, False) for name in item.beside]
        arm, other = f"What {arm} gains over {other}", f"what {two[0]} gains over {two[1]}"
    assert item.low is not None
    assert item.high is not None
    span = f"{points(item.low)} to {points(item.high)}"
    if item.verdict == "equal":
        return (
            f"{arm} and {other} are equal within {amount(experiment.margin)} "
            f"({points(item.mean)}, {span})."
        )
    size = f"{abs(100 * item.mean):.1f} points ({span})"
    if item.beside:
        return f"{arm} is {'more' if item.verdict == 'better' else 'less'} than {other} by {size}."
    return f"{arm} is {item.verdict} than {other} by {size}."


def _name(experiment: Experiment, name: str, chosen: bool) -> str:
    arm = experiment.arm(name)
    return f"“{arm.shown}”, the best of “{arm.series}”," if chosen else f"“{arm.shown}”"


def amount(share: float) -> str:
    """A number of points without a sign."""
    return f"{100 * share:g} point{'' if share == 0.01 else 's'}"


def points(share: float) -> str:
    """A difference of two shares, with its sign."""
    text = f"{100 * share:+.1f}".replace("-", "−")
    return text.replace("−0.0", "0.0").replace("+0.0", "0.0")


def _caveats(experiment: Experiment, found: Sequence[Difference]) -> Iterator[str]:
    known = [item for item in found if item.low is not None]
    without = len(found) - len(known)
    if without:
        count = f"{without} of {len(found)}"
        yield f"Differences without an interval, so that nothing is claimed: {count}."
    if known and all(item.verdict == "open" for item in known):
        yield "No difference may be claimed."
    undecided = [_undecided(experiment, item) for item in known if _alone(item)]
    if undecided:
        yield (
            f"Undecided, since the interval excludes zero only by itself and not among "
            f"{len(known)} comparisons: {'; '.join(undecided)}."
        )
    elif len(known) > 1 and any(item.verdict != "open" for item in known):
        yield f"What is claimed holds after Holm's correction for {len(known)} comparisons."
    for kind, what in ONE_SEED.items():
        if any(item.over == kind for item in known):
            yield (
                f"There is one seed: intervals cover {what}, and other seeds as far as they varied "
                f"in experiments with three (a difference by {amount(SEED_DEVIATION)}); different "
                f"trainings are never called equal."
            )


def _alone(item: Difference) -> bool:
    """True if the interval excludes zero and yet nothing is claimed."""
    assert item.low is not None
    assert item.high is not None
    return item.verdict == "open" and (item.low > 0 or item.high < 0)


def _undecided(experiment: Experiment, item: Difference) -> str:
    one, other = sides(experiment, item)
    return f"“{one}” against “{other}” ({points(item.mean)})"


def _once(experiment: Experiment, claimed: Sequence[Difference]) -> Iterator[str]:
    """A caveat if a claimed arm starts from a pre-training that was run once for all seeds."""
    names = {name for item in claimed for name in (item.arm, item.against, *item.beside)}
    arms = [experiment.arm(name) for name in names]
    if any(
        arm.weights == "learnt" and arm.start and experiment.arm(arm.start).once for arm in arms
    ):
        yield "Each pre-training was done once: intervals do not cover other pre-trainings."


SMOKE = "This is a smoke run with tiny models and a few steps: nothing can be concluded from it."


@dataclass(frozen=True, kw_only=True)
class Findings:
    """Results, conclusions and failures."""

    record: Record
    folder: Path
    results: tuple[Result, ...]
    failures: dict[str, str]
    """Trainings that ended in an error, as `ARM, seed N`, with the reason."""

    @property
    def experiment(self) -> Experiment:
        """Definition of the experiment."""
        return self.record.experiment

    @cached_property
    def summaries(self) -> dict[str, Summary]:
        """Mean, deviation and cost of each arm that has a result."""
        return summaries(self.experiment, self.results)

    @cached_property
    def differences(self) -> list[Difference]:
        """Differences of each arm to those it is compared with, with intervals."""
        failed = [name.rpartition(", seed ")[0] for name in self.failures]
        found = differences(self.experiment, self.results, failed)
        return [replace(item, verdict="open") for item in found] if self.record.smoke else found

    @cached_property
    def conclusion(self) -> list[str]:
        """Sentences that follow from the intervals; a smoke run has no conclusion."""
        if self.record.smoke:
            return [SMOKE, *failed(self.failures)]
        return [
            *conclusion(self.experiment, self.differences),
            *overfitting(self.experiment, self.summaries),
            *uneven(self.experiment, self.summaries),
            *failed(self.failures),
        ]

    @property
    def report(self) -> Path:
        """Path of the page."""
        return self.folder / "report.html"

    @property
    def trainings(self) -> int:
        """Total number of trainings."""
        return len(self.experiment.trainings(self.record.seeds))

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON-able values, except per-image correctness."""
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
