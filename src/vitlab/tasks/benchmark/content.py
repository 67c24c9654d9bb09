"""What a benchmark found: who took part, how fast each was, and how sure that is."""

import math
import statistics
from dataclasses import dataclass, field
from typing import Any

from vitlab.config import to_dict
from vitlab.contest.machine import disturbances, share_of_limit
from vitlab.contest.ratios import Estimate, compare, paired_ratios, quantile
from vitlab.contest.referee import Memory, Round

PERCENTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
"""Of the time of a call."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """Somebody who takes part, and what runs there."""

    name: str
    model: str
    runs: str
    """An engine of ours, or a library."""
    merge_tokens: int
    reference: str
    """Whose speed it is compared with."""
    original: str
    """Who computes the same with the same weights."""
    exact: bool
    """Whether it must give what the original gives."""
    parameters: int | None
    flops: int | None
    """Of one image; None, as of the parameters: an exported file does not tell."""
    bytes: int
    fresh: bool
    by_design: bool = False
    """Whether it merges or quantises otherwise than the original, and so differs."""
    ours: bool = True
    """An engine of ours, no library of others."""


@dataclass(frozen=True, kw_only=True)
class Accuracy:
    """How good a model is with so many merged tokens, with its 95 % interval."""

    model: str
    merge_tokens: int
    images: int
    accuracy: float
    interval: tuple[float, float]
    change: float
    """From the first number of merged tokens of the same weights, image by image."""
    change_interval: tuple[float, float]
    """95 %: what other images of the same kind could give."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """All of them at one batch size."""

    batch: int
    entries: tuple[Entry, ...]
    rounds: list[Round]
    memory: dict[str, Memory]
    differences: dict[str, float]
    """Largest difference of a logit from the original's."""

    def seconds(self, name: str) -> float:
        """Median time of one call."""
        return statistics.median(turns[name].seconds for turns in self.rounds)

    def images_per_second(self, name: str) -> float:
        return self.batch / self.seconds(name)

    def percentile(self, name: str, share: float) -> float | None:
        """Seconds that this share of the calls took at most; None where there were too few."""
        calls = sorted(time for turns in self.rounds for time in turns[name].each)
        if round(len(calls) * (1 - share), 9) < 1:
            return None
        return quantile(calls, share)

    def share_of_limit(self, entry: Entry) -> float | None:
        """Of what the machine's matrix product reaches; None where FLOPs are not known."""
        if entry.flops is None:
            return None
        return share_of_limit(self.rounds, entry.name, self.batch * entry.flops)

    def against(self, name: str, other: str) -> Estimate:
        """How many times as fast as another, with the 95 % interval over the rounds."""
        return compare([paired_ratios(self.rounds, name, other)])

    def place(self, name: str) -> tuple[int, int]:
        """The places that it may have: one only where every interval leaves no doubt."""
        others = [entry.name for entry in self.entries if entry.name != name]
        verdicts = [self.against(name, other).verdict for other in others]
        return 1 + verdicts.count("slower"), len(self.entries) - verdicts.count("faster")

    @property
    def disturbances(self) -> list[str]:
        """What makes the figures doubtful."""
        return disturbances(self.rounds)


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """Every batch size, and what it was measured on."""

    cells: tuple[Cell, ...]
    machine: dict[str, str]
    threads: int
    accuracies: tuple[Accuracy, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def entries(self) -> tuple[Entry, ...]:
        return self.cells[0].entries

    def accuracy(self, entry: Entry) -> Accuracy | None:
        """How good the model of an entry is, where that was asked."""
        wanted = (entry.model, entry.merge_tokens)
        found = (told for told in self.accuracies if (told.model, told.merge_tokens) == wanted)
        return next(found, None)

    def to_dict(self) -> dict[str, Any]:
        """Everything that was measured."""
        return {
            "machine": self.machine,
            "threads": self.threads,
            "settings": self.settings,
            "cells": [_cell(cell) for cell in self.cells],
            "accuracies": [to_dict(told) for told in self.accuracies],
        }


def _cell(cell: Cell) -> dict[str, Any]:
    return {
        "batch": cell.batch,
        "disturbances": cell.disturbances,
        "contestants": [_row(cell, entry) for entry in cell.entries],
        "rounds": [{name: to_dict(turn) for name, turn in turns.items()} for turns in cell.rounds],
    }


def _row(cell: Cell, entry: Entry) -> dict[str, Any]:
    found = cell.against(entry.name, entry.reference)
    first, last = cell.place(entry.name)
    return {
        **to_dict(entry),
        "images_per_second": cell.images_per_second(entry.name),
        "latency": {
            name: cell.percentile(entry.name, share) for name, share in PERCENTILES.items()
        },
        "ratio": found.ratio,
        # JSON has no infinity: an interval without an end has none.
        "interval": [bound if math.isfinite(bound) else None for bound in (found.low, found.high)],
        "place": first if first == last else None,
        "memory": to_dict(cell.memory[entry.name]),
        "share_of_limit": cell.share_of_limit(entry),
        "difference": cell.differences[entry.name],
    }
