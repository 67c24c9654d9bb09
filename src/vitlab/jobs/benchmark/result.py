"""The result of a benchmark: entries, speeds with intervals, memory, accuracy."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from vitlab.config import to_dict
from vitlab.io.text import markdown_text, visible
from vitlab.timing.referee import (
    Estimate,
    Memory,
    Round,
    compare,
    disturbances,
    paired_ratios,
    quantile,
    share_of_limit,
)

PERCENTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
"""Percentile of the time of a call."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One contestant: a model with an engine."""

    name: str
    model: str
    runs: str
    """The engine; in `benchmarks/` also another library."""
    merge_tokens: int
    reference: str
    """Entry that its speed is compared with."""
    original: str
    """Entry with the same weights that its logits are compared with."""
    exact: bool
    """True if its logits must agree with the original's."""
    parameters: int | None
    flops: int | None
    """FLOPs of one image; None, as the parameters: not stored in an exported file."""
    bytes: int
    fresh: bool
    by_design: bool = False
    """True if it merges or quantises differently from the original, so that logits differ."""
    ours: bool = True
    """True if an engine of vitlab runs it and gives probabilities; libraries give logits."""


@dataclass(frozen=True, kw_only=True)
class Accuracy:
    """Accuracy of a model for a number of merged tokens, with its 95 % interval."""

    model: str
    merge_tokens: int
    images: int
    accuracy: float
    interval: tuple[float, float]
    change: float
    """Change from the first number of merged tokens of the same weights, paired by image."""
    change_interval: tuple[float, float]
    """95 % interval over other images of the same kind."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """All entries at one batch size."""

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
        """Seconds that this share of the calls took at most; None if there were too few."""
        calls = sorted(time for turns in self.rounds for time in turns[name].each)
        if round(len(calls) * (1 - share), 9) < 1:
            return None
        return quantile(calls, share)

    def share_of_limit(self, entry: Entry) -> float | None:
        """Share of the speed of the machine's matrix product; None if FLOPs are not known."""
        if entry.flops is None:
            return None
        return share_of_limit(self.rounds, entry.name, self.batch * entry.flops)

    def against(self, name: str, other: str) -> Estimate:
        """Speed relative to another entry, with the 95 % interval over the rounds."""
        return compare([paired_ratios(self.rounds, name, other)])

    def place(self, name: str) -> tuple[int, int]:
        """Range of possible places: a single one only if every interval excludes a tie."""
        others = [entry.name for entry in self.entries if entry.name != name]
        verdicts = [self.against(name, other).verdict for other in others]
        return 1 + verdicts.count("slower"), len(self.entries) - verdicts.count("faster")

    @property
    def disturbances(self) -> list[str]:
        """Reasons to doubt the figures."""
        return disturbances(self.rounds)


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """Speeds at every batch size, and the machine."""

    cells: tuple[Cell, ...]
    machine: dict[str, str]
    threads: int
    accuracies: tuple[Accuracy, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def entries(self) -> tuple[Entry, ...]:
        return self.cells[0].entries

    def accuracy(self, entry: Entry) -> Accuracy | None:
        """Accuracy of the model of an entry; None if it was not measured."""
        wanted = (entry.model, entry.merge_tokens)
        found = (one for one in self.accuracies if (one.model, one.merge_tokens) == wanted)
        return next(found, None)

    def to_dict(self) -> dict[str, Any]:
        """All measurements, as JSON-able values."""
        return {
            "machine": self.machine,
            "threads": self.threads,
            "settings": self.settings,
            "cells": [_cell(cell) for cell in self.cells],
            "accuracies": [to_dict(one) for one in self.accuracies],
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


# A benchmark as tables: one for each batch size, and one of the models.

SPEEDS = (
    "",
    "images/s",
    *(f"{name} ms" for name in PERCENTILES),
    "times as fast",
    "95 % interval",
    "place",
    "memory MB",
    "of limit",
)
MODELS = ("", "parameters", "GFLOPs", "GMACs", "MB", "logits differ by")
Rows = list[tuple[str, ...]]


def speeds(cell: Cell) -> Rows:
    """Rows of speeds; a single place only where every interval excludes a tie."""
    return [_speed(cell, entry) for entry in cell.entries]


def models(found: Benchmark) -> tuple[tuple[str, ...], Rows]:
    """Head and rows of costs for one image; with the accuracy, if it was measured."""
    head: tuple[str, ...] = (*MODELS, "accuracy") if found.accuracies else MODELS
    worst = {
        entry.name: max(cell.differences[entry.name] for cell in found.cells)
        for entry in found.entries
    }
    rows: Rows = []
    for entry in found.entries:
        row = (
            entry.name,
            "-" if entry.parameters is None else f"{entry.parameters / 1e6:.2f} M",
            "-" if entry.flops is None else f"{entry.flops / 1e9:.3g}",
            "-" if entry.flops is None else f"{entry.flops / 2e9:.3g}",
            f"{entry.bytes / 1e6:.1f}",
            _difference(entry, worst[entry.name]),
        )
        rows.append((*row, _accuracy(found, entry)) if found.accuracies else row)
    return head, rows


def markdown(found: Benchmark, command: str | None = None) -> str:
    """The whole benchmark as Markdown."""
    parts = [
        f"# Benchmark\n\n{markdown_text(found.machine['processor'])}, {found.threads} threads."
    ]
    if command is not None:
        parts.append(f"```\n{visible(command)}\n```")
    for cell in found.cells:
        parts += [f"## Batch of {cell.batch}", _table(SPEEDS, speeds(cell))]
        parts += [f"Warning: {markdown_text(line)}; measure again." for line in cell.disturbances]
    parts += ["## What ran", _table(*models(found)), markdown_text(notes(found))]
    return "\n\n".join(parts) + "\n"


def notes(found: Benchmark) -> str:
    """Notes on reading the tables."""
    first = found.entries[0].reference
    text = (
        f"Times as fast as {first}: medians of {len(found.cells[0].rounds)} rounds, each with one "
        f"turn of every entry, and the interval from resampling the rounds. A range of places: the "
        f"intervals overlap. "
        f"Memory is the peak of the process, with imports. The limit is a large matrix product in "
        f"the same rounds."
    )
    if any(
        cell.percentile(e.name, PERCENTILES["p99"]) is None
        for cell in found.cells
        for e in cell.entries
    ):
        text += (
            " A percentile without a number (-) had too few timed calls: p90 needs 10 and p99 100; "
            "--rounds and --seconds give more."
        )
    if found.accuracies:
        text += f" Accuracy on {found.accuracies[0].images:,} images."
    if any(entry.by_design for entry in found.entries):
        text += (
            " By design: it merges or quantises differently from the first of the same weights, "
            "so that logits differ."
        )
    if any(entry.fresh for entry in found.entries):
        text += " Models given by name have random weights."
    return text


def _speed(cell: Cell, entry: Entry) -> tuple[str, ...]:
    reference = entry.name == entry.reference
    found = cell.against(entry.name, entry.reference)
    first, last = cell.place(entry.name)
    share = cell.share_of_limit(entry)
    return (
        entry.name,
        f"{cell.images_per_second(entry.name):.3g}",
        *(_milliseconds(cell.percentile(entry.name, share)) for share in PERCENTILES.values()),
        "1" if reference else f"{found.ratio:.3f}",
        "-" if reference else _interval(found),
        str(first) if first == last else f"{first}-{last}",
        f"{cell.memory[entry.name].ever / 1e6:.0f}",
        "-" if share is None else f"{share:.0%}",
    )


def _difference(entry: Entry, worst: float) -> str:
    if entry.name == entry.original:
        return "-"
    return f"{worst:.1g}" + (", by design" if entry.by_design else "")


def _interval(found: Estimate) -> str:
    return "too few rounds" if found.low <= 0 else f"{found.low:.3f} to {found.high:.3f}"


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1e3 * seconds:.1f}"


def _accuracy(found: Benchmark, entry: Entry) -> str:
    known = found.accuracy(entry)
    if known is None:
        return "-"
    low, high = known.interval
    text = f"{known.accuracy:.1%} ({low:.1%} to {high:.1%})"
    if known.merge_tokens or known.change_interval != (0.0, 0.0):
        low, high = known.change_interval
        text += f", {100 * known.change:+.1f} points ({100 * low:+.1f} to {100 * high:+.1f})"
    return text


def _table(head: Sequence[str], rows: Rows) -> str:
    head, rows = tuple(map(markdown_text, head)), [tuple(map(markdown_text, row)) for row in rows]
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
