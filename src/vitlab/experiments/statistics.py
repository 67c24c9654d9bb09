"""Means, deviations, and intervals of differences between arms.

Trainings of two arms with the same seed share their held-out images and the order of the others,
so differences are taken seed by seed: Student's interval of their mean. Of a single seed, the
interval is that of the images: a bootstrap over those that both judged.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from vitlab.evaluate.bootstrap import interval as bootstrap
from vitlab.evaluate.fewshot import student
from vitlab.experiments.result import Result
from vitlab.experiments.spec import Arm, Experiment

Verdict = Literal["better", "worse", "equal", "open"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """An arm over its seeds."""

    arm: str
    values: tuple[float, ...]
    held_out: float | None
    pflops: float
    minutes: float
    steps: float
    parameters: int
    forward: int

    @property
    def mean(self) -> float:
        """Over the seeds."""
        return statistics.fmean(self.values)

    @property
    def deviation(self) -> float | None:
        """Over the seeds, of a sample; None of one seed."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """How much better an arm is than another, with its 95 % interval."""

    arm: str
    against: str
    mean: float
    low: float | None
    high: float | None
    """Of the interval; None where a single seed and no images tell it."""
    seeds: int
    """Pairs of trainings."""
    over: Literal["seeds", "images"]
    """What the interval is about: other seeds, or, with a single one, other images."""
    verdict: Verdict
    chosen: bool = False
    """Both arms are the best of their series on held-out images."""


def summaries(experiment: Experiment, results: Sequence[Result]) -> dict[str, Summary]:
    """Every arm that has a result, in order."""
    found = {}
    for arm in experiment.arms:
        mine = [result for result in results if result.arm == arm.name]
        values = tuple(result.value for result in mine if result.value is not None)
        if values:
            found[arm.name] = _summary(arm, mine, values)
    return found


def _summary(arm: Arm, results: Sequence[Result], values: tuple[float, ...]) -> Summary:
    held_out = [result.held_out for result in results if result.held_out is not None]
    return Summary(
        arm=arm.name,
        values=values,
        held_out=statistics.fmean(held_out) if held_out else None,
        pflops=statistics.fmean(result.pflops for result in results),
        minutes=statistics.fmean(result.minutes for result in results),
        steps=statistics.fmean(result.steps for result in results),
        parameters=results[0].parameters,
        forward=results[0].forward,
    )


def differences(experiment: Experiment, results: Sequence[Result]) -> list[Difference]:
    """Of each arm to those it is against, then of the best of each series."""
    by_arm = {
        arm.name: {result.seed: result for result in results if result.arm == arm.name}
        for arm in experiment.arms
    }
    pairs = [(arm.name, other, False) for arm in experiment.arms for other in arm.against]
    pairs += [(arm, other, True) for arm, other in _best_pairs(experiment, results)]
    found = (
        difference(arm, other, by_arm[arm], by_arm[other], margin=experiment.margin, chosen=chosen)
        for arm, other, chosen in pairs
    )
    return [item for item in found if item is not None]


def _best_pairs(experiment: Experiment, results: Sequence[Result]) -> list[tuple[str, str]]:
    """The best arm of each series and that of the one they are compared with."""
    known = summaries(experiment, results)
    best = {}
    for series, arms in experiment.series.items():
        # One that failed with some seed has a mean over the lucky ones.
        most = max((len(known[arm.name].values) for arm in arms if arm.name in known), default=0)
        whole = [arm for arm in arms if arm.name in known and len(known[arm.name].values) == most]
        judged = [
            (found, arm.name) for arm in whole if (found := _held_out(known, arm)) is not None
        ]
        if judged:
            best[series] = max(judged, key=lambda pair: pair[0])[1]
    if experiment.choose not in best:
        return []
    return [(arm, best[experiment.choose]) for s, arm in best.items() if s != experiment.choose]


def _held_out(known: Mapping[str, Summary], arm: Arm) -> float | None:
    return known[arm.name].held_out if arm.name in known else None


def difference(
    arm: str,
    against: str,
    ours: Mapping[int, Result],
    theirs: Mapping[int, Result],
    *,
    margin: float,
    chosen: bool = False,
) -> Difference | None:
    """By the seeds that both have; None where there are none."""
    seeds = sorted(ours.keys() & theirs.keys())
    values = [(ours[seed].value, theirs[seed].value) for seed in seeds]
    gaps = [one - other for one, other in values if one is not None and other is not None]
    if not gaps:
        return None
    several = len(seeds) > 1
    bounds = seed_interval(gaps) if several else image_interval(ours[seeds[0]], theirs[seeds[0]])
    low, high = bounds or (None, None)
    return Difference(
        arm=arm,
        against=against,
        mean=statistics.fmean(gaps),
        low=low,
        high=high,
        seeds=len(seeds),
        over="seeds" if several else "images",
        verdict=verdict(low, high, margin),
        chosen=chosen,
    )


def seed_interval(gaps: Sequence[float]) -> tuple[float, float]:
    """Student's 95 % interval of the mean of paired differences."""
    mean = statistics.fmean(gaps)
    half = student(len(gaps) - 1) * statistics.stdev(gaps) / math.sqrt(len(gaps))
    return mean - half, mean + half


def image_interval(ours: Result, theirs: Result) -> tuple[float, float] | None:
    """95 % bootstrap interval of the difference over images that both judged, image by image."""
    one, other = ours.bits, theirs.bits
    if one is None or other is None or len(one) != len(other):
        return None
    gaps = np.array(one, dtype=np.float64) - np.array(other, dtype=np.float64)
    return bootstrap(lambda rows: float(gaps[rows].mean()), len(gaps))


def verdict(low: float | None, high: float | None, margin: float) -> Verdict:
    """What may be said: nothing where the interval crosses zero, unless it is within the margin."""
    if low is None or high is None:
        return "open"
    if -margin <= low and high <= margin:
        return "equal"
    if low > 0:
        return "better"
    return "worse" if high < 0 else "open"
