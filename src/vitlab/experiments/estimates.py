"""Estimated differences between arms: standard errors, intervals, and Holm's correction.

Several seeds: trainings with the same seed share their held-out images and the order of the others,
so an accuracy is modelled as the sum of an effect of its arm, one of its seed, and a residual. The
residual's variance is estimated from all arms together, which has more degrees of freedom than the
two arms of a difference: ten arms with three seeds have 18 instead of 2.

One seed: the variance over test images (or few-shot draws) is estimated, and that between seeds is
`SEED_DEVIATION`, squared.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vitlab.evaluation.fewshot import student
from vitlab.experiments.folder import Result

SIGNS = (1.0, -1.0, -1.0, 1.0)
"""Signs of an arm, the one it is compared with, and the two arms of a second difference."""
SEED_DEVIATION = 0.012
"""Deviation over seeds of the difference between two arms, in the experiments of the documentation
that have three seeds (root mean square; a test recomputes it)."""
LEAST = 0.025
"""Smallest difference that may be claimed of one seed, about twice that deviation."""
LEVEL = 0.05
"""Probability of one false claim or more among the claims of an experiment."""
MANY = 1_000_000
"""Degrees of freedom beyond which Student's distribution counts as normal."""
POINTS = 4001
"""Points of the numerical integral of Student's density."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """A difference with its standard error and the degrees of freedom of that error."""

    mean: float
    error: float
    freedom: float = math.inf

    @property
    def interval(self) -> tuple[float, float]:
        """Student's 95 % interval; the normal one if `freedom` is infinite."""
        quantile = 1.959964 if math.isinf(self.freedom) else student(int(self.freedom))
        return self.mean - quantile * self.error, self.mean + quantile * self.error

    @property
    def different(self) -> float:
        """Two-sided p-value of the hypothesis that the difference is zero."""
        return tails(abs(self.mean) / self.error, self.freedom)

    def equal(self, margin: float) -> float:
        """Two-sided p-value of the hypothesis that the difference is `margin` or larger.

        Below 0.05, the 95 % interval lies within the margin.
        """
        return min(1.0, tails((margin - abs(self.mean)) / self.error, self.freedom))


def tails(t: float, freedom: float) -> float:
    """Probability that Student's t is beyond `t` on either side; above 1 for a negative `t`."""
    if t < 0:
        return 2.0 - tails(-t, freedom)
    if freedom > MANY:
        return math.erfc(t / math.sqrt(2))
    # With t = sqrt(freedom) tan(x), the density is proportional to cos(x) ** (freedom - 1).
    edge = math.atan(t / math.sqrt(freedom))
    end = min(edge + 12 / math.sqrt(freedom), math.pi / 2)  # beyond it, 1e-21 and less
    inner, outer = (_area(*ends, freedom) for ends in ((0.0, edge), (edge, end)))
    return outer / (inner + outer)


def _area(begin: float, end: float, freedom: float) -> float:
    x = np.linspace(begin, end, POINTS)
    return float(np.trapezoid(np.cos(x).clip(0.0) ** (freedom - 1), x))


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Holm's adjusted p-values (1979); None stays None and does not count."""
    order = sorted((p, place) for place, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for rank, (p, place) in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - rank) * p))
        adjusted[place] = largest
    return adjusted


@dataclass(frozen=True, kw_only=True, slots=True)
class Residual:
    """Deviation of the trainings of an experiment that neither arm nor seed explains."""

    deviation: float
    freedom: int


def residual(results: Sequence[Result]) -> Residual | None:
    """Pooled residual of all arms; None if nothing is left to estimate it from.

    Trainings of a seed that were evaluated on other images have an effect of their own.
    """
    known = [result for result in results if result.value is not None]
    arms = list(dict.fromkeys(result.arm for result in known))
    blocks = list(dict.fromkeys((result.seed, result.images) for result in known))
    design = np.zeros((len(known), len(arms) + len(blocks)))
    for row, result in enumerate(known):
        design[row, arms.index(result.arm)] = 1
        design[row, len(arms) + blocks.index((result.seed, result.images))] = 1
    values = np.array([result.value for result in known])
    solution, _, rank, _ = np.linalg.lstsq(design, values, rcond=None)
    freedom = len(known) - int(rank)
    squares = float(((values - design @ solution) ** 2).sum())
    if not freedom or squares < 1e-12:  # rounding alone
        return None
    return Residual(deviation=math.sqrt(squares / freedom), freedom=freedom)


def contrast(values: Sequence[float]) -> float:
    """First minus second; of four, also minus the difference of the third and the fourth."""
    return sum(sign * value for sign, value in zip(SIGNS, values, strict=False))


def over_seeds(rows: Sequence[Sequence[Result]], pooled: Residual | None) -> Estimate | None:
    """Difference of arms over the seeds that they share, a row for each seed."""
    if pooled is None:
        return None
    gaps = [contrast([result.value or 0.0 for result in row]) for row in rows]
    error = pooled.deviation * math.sqrt(len(rows[0]) / len(rows))
    return Estimate(mean=statistics.fmean(gaps), error=error, freedom=pooled.freedom)


def over_draws(row: Sequence[Result], *, same_weights: bool) -> Estimate | None:
    """Difference over few-shot draws, which all arms share."""
    counts = {len(result.draws) for result in row}
    if len(counts) > 1 or min(counts) < 2:
        return None
    gaps = [contrast(values) for values in zip(*(r.draws for r in row), strict=True)]
    variance = statistics.variance(gaps) / len(gaps)
    return _with_seeds(statistics.fmean(gaps), variance, len(gaps) - 1, row, same_weights)


def over_images(row: Sequence[Result], *, same_weights: bool) -> Estimate | None:
    """Difference over test images, paired by image."""
    bits = [result.bits for result in row]
    known = [found for found in bits if found is not None]
    if len(known) < len(bits) or len({len(found) for found in known}) > 1:
        return None
    gaps = np.array(SIGNS[: len(row)]) @ np.array(known, dtype=np.float64)
    return _with_seeds(float(gaps.mean()), gaps.var() / len(gaps), math.inf, row, same_weights)


def _with_seeds(
    mean: float, variance: float, freedom: float, row: Sequence[Result], same_weights: bool
) -> Estimate | None:
    """The estimate, with the variance between seeds unless all arms have the same weights."""
    seeds = 0.0 if same_weights else SEED_DEVIATION**2 * len(row) / 2
    total = variance + seeds
    if not total:
        return None
    # Satterthwaite: the part between seeds counts as known.
    share = variance / total
    return Estimate(
        mean=mean, error=math.sqrt(total), freedom=freedom / share**2 if share else math.inf
    )
