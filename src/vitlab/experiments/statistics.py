"""Means, deviations, and intervals of differences between arms.

Trainings of two arms with the same seed share their held-out images and the order of the others,
so differences are taken seed by seed: Student's interval of their mean. Where no arm has more than
one seed, the interval is that of the images, a bootstrap over those that both judged; or, with few
shots, Student's over the draws that both share. That tells nothing of other seeds, so a difference
must then be larger than the margin to be claimed, and nothing is called equal, unless both arms are
the same weights. One seed left of several has no interval, and neither have differences that are
the same in every seed: so few images, or weights that no seed changes, tell nothing of the spread.
"""

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from vitlab.evaluation.bootstrap import interval as bootstrap
from vitlab.evaluation.fewshot import student
from vitlab.experiments.result import TRAIN_ACCURACY, Result
from vitlab.experiments.spec import Arm, Experiment

Verdict = Literal["better", "worse", "equal", "open"]
Over = Literal["seeds", "images", "draws"]
SIGNS = (1.0, -1.0, -1.0, 1.0)
"""Of an arm, the one it is against, and two that their difference is taken beside."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """An arm over its seeds."""

    arm: str
    values: tuple[float, ...]
    held_out: float | None
    pflops: float
    before: float
    """PFLOPs of what it starts from, which it has in its weights; 0 of one that begins anew."""
    minutes: float
    minutes_before: float
    """Wall time of the same."""
    steps: float
    parameters: int
    forward: int
    train_accuracy: float | None
    """Of some of the images it learnt from; None where that was not measured."""

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
    """Of the interval; None where nothing tells it, such as one seed left of several."""
    seeds: int
    """Pairs of trainings."""
    over: Over
    """What the interval is about: other seeds; where each arm has one, other images or draws."""
    verdict: Verdict
    chosen: bool = False
    """Both arms are the best of their series on held-out images."""
    beside: tuple[str, ...] = ()
    """Two arms whose own difference is taken off: empty, or how much more the first two differ."""


def summaries(experiment: Experiment, results: Sequence[Result]) -> dict[str, Summary]:
    """Every arm that has a result, in order."""
    found = {}
    for arm in experiment.arms:
        mine = [result for result in results if result.arm == arm.name]
        values = tuple(result.value for result in mine if result.value is not None)
        if values:
            before = _before(experiment, arm, results)
            found[arm.name] = _summary(arm, mine, values, before)
    return found


def _before(experiment: Experiment, arm: Arm, results: Sequence[Result]) -> tuple[float, float]:
    """PFLOPs and minutes behind the weights that an arm starts from, on average over seeds."""
    if not arm.start or arm.weights == "fresh":
        return 0.0, 0.0
    pflops, minutes = _before(experiment, experiment.arm(arm.start), results)
    spent = [result for result in results if result.arm == arm.start]
    if spent:
        pflops += statistics.fmean(result.pflops for result in spent)
        minutes += statistics.fmean(result.minutes for result in spent)
    return pflops, minutes


def _summary(
    arm: Arm,
    results: Sequence[Result],
    values: tuple[float, ...],
    before: tuple[float, float],
) -> Summary:
    held_out = [result.held_out for result in results if result.held_out is not None]
    learnt = [x for result in results for x in result.probes.get(TRAIN_ACCURACY, ())]
    return Summary(
        arm=arm.name,
        values=values,
        held_out=statistics.fmean(held_out) if held_out else None,
        pflops=statistics.fmean(result.pflops for result in results),
        before=before[0],
        minutes=statistics.fmean(result.minutes for result in results),
        minutes_before=before[1],
        steps=statistics.fmean(result.steps for result in results),
        parameters=results[0].parameters,
        forward=results[0].forward,
        train_accuracy=statistics.fmean(learnt) if learnt else None,
    )


def differences(
    experiment: Experiment, results: Sequence[Result], failed: Collection[str] = ()
) -> list[Difference]:
    """Of each arm to those it is against, of the best of each series, then of gains.

    `failed` are the names of arms that were tried and have no result.
    """
    by_arm = {
        arm.name: {r.seed: r for r in results if r.arm == arm.name and r.value is not None}
        for arm in experiment.arms
    }
    several = max(map(len, by_arm.values())) > 1
    pairs: list[tuple[tuple[str, ...], bool]] = [
        ((arm.name, other), False) for arm in experiment.arms for other in arm.against
    ]
    pairs += [(pair, True) for pair in _best_pairs(experiment, results, failed)]
    pairs += [((*gain.of, *gain.beside), False) for gain in experiment.gains]
    found = (
        difference(
            {name: by_arm[name] for name in names},
            margin=experiment.margin,
            several=several,
            chosen=chosen,
            same_weights=len({_weights(experiment.arm(name)) for name in names}) == 1,
        )
        for names, chosen in pairs
    )
    return [item for item in found if item is not None]


def _weights(arm: Arm) -> str:
    """The arm whose training an arm is judged with; positions drawn anew are other weights."""
    return arm.start if arm.how == "test" and arm.positions == "resized" else arm.name


def _best_pairs(
    experiment: Experiment, results: Sequence[Result], failed: Collection[str]
) -> list[tuple[str, str]]:
    """The best arm of each series and that of the one they are compared with."""
    if not experiment.choose:
        return []
    held_out: dict[str, dict[int, float]] = {}
    for result in results:
        if result.held_out is not None:
            held_out.setdefault(result.arm, {})[result.seed] = result.held_out
    place = {arm.name: number for number, arm in enumerate(experiment.arms)}
    reached = max(((result.seed, place[result.arm]) for result in results), default=(0, 0))
    best = {}
    for series, arms in experiment.series.items():
        waiting = [arm.name for arm in arms if (0, place[arm.name]) > reached]
        if not set(waiting) <= set(failed):
            continue  # some have not had their turn yet
        known = {arm.name: held_out[arm.name] for arm in arms if arm.name in held_out}
        name = _best(known)
        if name is not None:
            best[series] = name
    if experiment.choose not in best:
        return []
    return [(arm, best[experiment.choose]) for s, arm in best.items() if s != experiment.choose]


def _best(held_out: Mapping[str, Mapping[int, float]]) -> str | None:
    """The arm with the best mean of the seeds that all have; None where there are none.

    Within a round some arms are one seed ahead of others. One further behind failed: its mean
    would be over the lucky seeds.
    """
    most = max(map(len, held_out.values()), default=0)
    whole = {name: found for name, found in held_out.items() if len(found) >= max(most - 1, 1)}
    seeds = set.intersection(*(set(found) for found in whole.values())) if whole else set()
    if not seeds:
        return None
    return max(whole, key=lambda name: statistics.fmean(whole[name][seed] for seed in seeds))


def difference(
    arms: Mapping[str, Mapping[int, Result]],
    *,
    margin: float,
    several: bool,
    chosen: bool = False,
    same_weights: bool = False,
) -> Difference | None:
    """Of an arm to another, by the seeds that all have; None where there are none.

    Arms that were judged by different images, since these changed meanwhile, are not compared.

    Two more arms take their own difference off. `several`: some arm of the experiment has more
    than one seed, so that one alone claims nothing. `same_weights`: no seed would make a
    difference.
    """
    seeds = sorted(set.intersection(*(set(found) for found in arms.values())))
    rows = [[found[seed] for found in arms.values()] for seed in seeds]
    rows = [row for row in rows if len({result.images for result in row}) == 1]
    if not rows:
        return None
    gaps = [_contrast([result.value or 0.0 for result in row]) for row in rows]
    over, bounds = _interval(rows, gaps, several)
    low, high = bounds or (None, None)
    arm, against, *beside = arms
    return Difference(
        arm=arm,
        against=against,
        mean=statistics.fmean(gaps),
        low=low,
        high=high,
        seeds=len(rows),
        over=over,
        verdict=verdict(low, high, margin, one_seed=over != "seeds" and not same_weights),
        chosen=chosen,
        beside=tuple(beside),
    )


def _contrast(values: Sequence[float]) -> float:
    """The first less the second; of four, less what the third has over the fourth."""
    return sum(sign * value for sign, value in zip(SIGNS, values, strict=False))


def _interval(
    rows: Sequence[Sequence[Result]], gaps: Sequence[float], several: bool
) -> tuple[Over, tuple[float, float] | None]:
    """What it is about, and its bounds."""
    if several:
        return "seeds", paired_interval(gaps) if _vary(gaps) else None
    (row,) = rows
    if any(result.draws for result in row):
        return "draws", draw_interval(row)
    return "images", image_interval(row)


def _vary(gaps: Sequence[float]) -> bool:
    """Whether seeds differ by more than the last digits of a number."""
    return max(gaps) - min(gaps) > 1e-9


def paired_interval(gaps: Sequence[float]) -> tuple[float, float]:
    """Student's 95 % interval of the mean of paired differences."""
    mean = statistics.fmean(gaps)
    half = student(len(gaps) - 1) * statistics.stdev(gaps) / math.sqrt(len(gaps))
    return mean - half, mean + half


def draw_interval(row: Sequence[Result]) -> tuple[float, float] | None:
    """The same over draws of a few images, which all arms were judged by."""
    counts = {len(result.draws) for result in row}
    if len(counts) > 1 or min(counts) < 2:
        return None
    return paired_interval([_contrast(v) for v in zip(*(r.draws for r in row), strict=True)])


def image_interval(row: Sequence[Result]) -> tuple[float, float] | None:
    """95 % bootstrap interval of the difference over images that all judged, image by image."""
    bits = [result.bits for result in row]
    known = [found for found in bits if found is not None]
    if len(known) < len(bits) or len({len(found) for found in known}) > 1:
        return None
    gaps = np.array(SIGNS[: len(row)]) @ np.array(known, dtype=np.float64)
    return bootstrap(lambda rows: float(gaps[rows].mean()), len(gaps))


def verdict(
    low: float | None, high: float | None, margin: float, *, one_seed: bool = False
) -> Verdict:
    """What may be said: nothing where the interval crosses zero, unless it is within the margin.

    Of `one_seed` of each, the interval tells nothing of others: it must lie beyond the margin, and
    nothing is equal.
    """
    if low is None or high is None:
        return "open"
    if -margin <= low and high <= margin and not one_seed:
        return "equal"
    least = margin if one_seed else 0.0
    if low > least:
        return "better"
    return "worse" if high < -least else "open"
