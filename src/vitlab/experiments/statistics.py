"""Means and deviations of arms, and the claims that their differences allow.

A difference is claimed if its p-value, corrected for all comparisons of the experiment by Holm's
method, is below 5 %. Arms are called equal if the same holds for the hypothesis that they differ
by the margin or more. Of one seed, no difference below 2.5 points is claimed and nothing is called
equal, unless both arms are the same weights.
"""

import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from vitlab.experiments.estimates import (
    LEAST,
    LEVEL,
    Estimate,
    Residual,
    contrast,
    holm,
    over_draws,
    over_images,
    over_seeds,
    residual,
)
from vitlab.experiments.folder import TRAIN_ACCURACY, Result
from vitlab.experiments.spec import Arm, Experiment

Verdict = Literal["better", "worse", "equal", "open"]
Over = Literal["seeds", "images", "draws"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """Summary of an arm over its seeds."""

    arm: str
    values: tuple[float, ...]
    held_out: float | None
    pflops: float
    before: float
    """PFLOPs of the runs this arm starts from; 0 for training from scratch."""
    minutes: float
    minutes_before: float
    """Minutes of the runs this arm starts from."""
    steps: float
    parameters: int
    forward: int
    train_accuracy: float | None
    """Accuracy on some training images; None if not measured."""

    @property
    def mean(self) -> float:
        """Mean over the seeds."""
        return statistics.fmean(self.values)

    @property
    def deviation(self) -> float | None:
        """Sample standard deviation over the seeds; None for one seed."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """Difference between two arms, with its 95 % interval."""

    arm: str
    against: str
    mean: float
    low: float | None
    high: float | None
    """Lower bound of the interval; None if it cannot be estimated."""
    seeds: int
    """Number of pairs of trainings."""
    over: Over
    """Source of variation: seeds; if each arm has one, test images or few-shot draws."""
    p: float | None
    """p-value of no difference, corrected for all comparisons of the experiment."""
    verdict: Verdict
    chosen: bool = False
    """Both arms are the best of their series on held-out images."""
    beside: tuple[str, ...] = ()
    """Two arms whose difference is subtracted; empty: none."""


def summaries(experiment: Experiment, results: Sequence[Result]) -> dict[str, Summary]:
    """Summary of every arm that has a result, in order."""
    found = {}
    for arm in experiment.arms:
        mine = [result for result in results if result.arm == arm.name]
        values = tuple(result.value for result in mine if result.value is not None)
        if values:
            before = _before(experiment, arm, results)
            found[arm.name] = _summary(arm, mine, values, before)
    return found


def _before(experiment: Experiment, arm: Arm, results: Sequence[Result]) -> tuple[float, float]:
    """PFLOPs and minutes behind the weights an arm starts from, averaged over seeds."""
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
    """Differences of each arm to its baselines, of the best of each series, then of gains.

    `failed` are the names of arms that failed and have no result.
    """
    by_arm = {
        arm.name: {r.seed: r for r in results if r.arm == arm.name and r.value is not None}
        for arm in experiment.arms
    }
    pairs: list[tuple[tuple[str, ...], bool]] = [
        ((arm.name, other), False) for arm in experiment.arms for other in arm.against
    ]
    pairs += [(pair, True) for pair in _best_pairs(experiment, results, failed)]
    pairs += [((*gain.of, *gain.beside), False) for gain in experiment.gains]
    several = max(map(len, by_arm.values())) > 1
    pooled = residual(results) if several else None
    found = []
    for names, chosen in pairs:
        same = len({_weights(experiment.arm(name)) for name in names}) == 1
        gap = _gap([by_arm[name] for name in names], several, pooled, same_weights=same)
        if gap is not None:
            found.append((names, chosen, gap))
    return _judged(found, experiment.margin)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Gap:
    """A difference before it is judged."""

    mean: float
    seeds: int
    over: Over
    estimate: Estimate | None
    same_or_several: bool
    """True if both arms are the same weights, or if seeds show how much trainings differ."""


def _gap(
    arms: Sequence[Mapping[int, Result]],
    several: bool,
    pooled: Residual | None,
    *,
    same_weights: bool,
) -> _Gap | None:
    """Difference of arms over the seeds common to all; None if there are none.

    Arms evaluated on different images, since the data changed meanwhile, are not compared.
    `several`: some arm of the experiment has more than one seed.
    """
    seeds = sorted(set.intersection(*(set(found) for found in arms)))
    rows = [[found[seed] for found in arms] for seed in seeds]
    rows = [row for row in rows if len({result.images for result in row}) == 1]
    if not rows:
        return None
    over: Over = "seeds"
    if several:
        estimate = over_seeds(rows, pooled)
    elif any(result.draws for result in rows[0]):
        over, estimate = "draws", over_draws(rows[0], same_weights=same_weights)
    else:
        over, estimate = "images", over_images(rows[0], same_weights=same_weights)
    gaps = [contrast([result.value or 0.0 for result in row]) for row in rows]
    return _Gap(
        mean=statistics.fmean(gaps),
        seeds=len(rows),
        over=over,
        estimate=estimate,
        same_or_several=several or same_weights,
    )


def _judged(found: Sequence[tuple[tuple[str, ...], bool, _Gap]], margin: float) -> list[Difference]:
    """Differences with their verdicts, corrected for all of them together."""
    estimates = [gap.estimate for _, _, gap in found]
    different = holm([None if e is None else e.different for e in estimates])
    equal = holm([None if e is None else e.equal(margin) for e in estimates])
    return [
        Difference(
            arm=names[0],
            against=names[1],
            mean=gap.mean,
            low=None if gap.estimate is None else gap.estimate.interval[0],
            high=None if gap.estimate is None else gap.estimate.interval[1],
            seeds=gap.seeds,
            over=gap.over,
            p=p,
            verdict=_verdict(gap, p, same),
            chosen=chosen,
            beside=names[2:],
        )
        for (names, chosen, gap), p, same in zip(found, different, equal, strict=True)
    ]


def _verdict(gap: _Gap, different: float | None, equal: float | None) -> Verdict:
    """Verdict of a difference; of one seed, the stricter one."""
    if gap.same_or_several:
        return verdict(gap.mean, different, equal)
    return verdict(gap.mean, different if abs(gap.mean) >= LEAST else None, None)


def verdict(mean: float, different: float | None, equal: float | None) -> Verdict:
    """Verdict of a difference from its corrected p-values; None: nothing may be claimed by it."""
    if equal is not None and equal < LEVEL:
        return "equal"
    if different is None or different >= LEVEL:
        return "open"
    return "better" if mean > 0 else "worse"


def _weights(arm: Arm) -> str:
    """The arm whose training produced an arm's weights; fresh positions count as other weights."""
    return arm.start if arm.how == "test" and arm.positions == "resized" else arm.name


def _best_pairs(
    experiment: Experiment, results: Sequence[Result], failed: Collection[str]
) -> list[tuple[str, str]]:
    """Pairs of the best arm of each series and the best of the baseline series."""
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
            continue  # some have not run yet
        known = {arm.name: held_out[arm.name] for arm in arms if arm.name in held_out}
        name = _best(known)
        if name is not None:
            best[series] = name
    if experiment.choose not in best:
        return []
    return [(arm, best[experiment.choose]) for s, arm in best.items() if s != experiment.choose]


def _best(held_out: Mapping[str, Mapping[int, float]]) -> str | None:
    """The arm with the best mean over the seeds common to all; None if there are none.

    Within a round some arms are one seed ahead of others. One further behind failed: its mean
    would be over the lucky seeds.
    """
    most = max(map(len, held_out.values()), default=0)
    whole = {name: found for name, found in held_out.items() if len(found) >= max(most - 1, 1)}
    seeds = set.intersection(*(set(found) for found in whole.values())) if whole else set()
    if not seeds:
        return None
    return max(whole, key=lambda name: statistics.fmean(whole[name][seed] for seed in seeds))
