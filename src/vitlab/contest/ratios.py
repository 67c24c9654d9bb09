"""Ratios of times within a round, and how sure they are: medians, and intervals by resampling."""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from vitlab.contest.referee import Round


def paired_ratios(rounds: Iterable[Round], ours: str, theirs: str) -> list[float]:
    """How many times faster we were, round by round."""
    return [turns[theirs].seconds / turns[ours].seconds for turns in rounds]


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A ratio with its interval."""

    ratio: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        """Who won, where the interval leaves no doubt."""
        if self.low > 1:
            return "faster"
        return "slower" if self.high < 1 else "no difference shown"


def compare(
    ratios: Sequence[Sequence[float]], *, level: float = 0.95, resamples: int = 4000, seed: int = 0
) -> Estimate:
    """Geometric mean over settings of each one's median ratio; the interval resamples rounds.

    Too few rounds give an interval without ends: all n of them enclose the true median with
    probability 1 - 2 ** (1 - n) only, and no resampling can know more.
    """
    if any(1 - 2.0 ** (1 - len(setting)) < level for setting in ratios):
        return Estimate(ratio=_centre(ratios), low=0.0, high=math.inf)
    draw = np.random.default_rng(seed)
    logs = [
        np.log(np.median(draw.choice(setting, (resamples, len(setting))), axis=1))
        for setting in ratios
    ]
    low, high = np.exp(np.quantile(np.mean(logs, axis=0), [(1 - level) / 2, (1 + level) / 2]))
    return Estimate(ratio=_centre(ratios), low=float(low), high=float(high))


def _centre(ratios: Sequence[Sequence[float]]) -> float:
    return geometric_mean(statistics.median(setting) for setting in ratios)


def geometric_mean(values: Iterable[float]) -> float:
    """The exponential of the mean logarithm."""
    return math.exp(statistics.fmean(math.log(value) for value in values))


def quantile(ordered: Sequence[float], share: float) -> float:
    """The value below which `share` of the sorted values lie, between neighbours linearly."""
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])
