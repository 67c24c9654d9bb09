"""Figures of a benchmark: ratios with their intervals, and accuracy against speed."""

import json
import math
from pathlib import Path
from typing import Any

from vitlab.io.files import write_files
from vitlab.io.text import literal
from vitlab.jobs.benchmark.result import Accuracy, Benchmark, Cell, Entry, markdown
from vitlab.report.figures.table import KINDS, check_folder
from vitlab.report.plots import (
    CLASSES,
    FAINT,
    INK,
    MARKERS,
    PAGE,
    QUIET,
    check_matplotlib,
    new_figure,
    rendered,
    styled,
)

LINE = 0.26
"""Inches for each contestant."""


def draw_speeds(found: Benchmark) -> Any:
    """Draw the speed relative to the reference, a panel for each batch size."""
    figure = new_figure(PAGE, sum(0.9 + LINE * len(cell.entries) for cell in found.cells), gap=0.04)
    heights = [0.9 + LINE * len(cell.entries) for cell in found.cells]
    panels = figure.subplots(len(found.cells), 1, squeeze=False, height_ratios=heights)[:, 0]
    for cell, axes in zip(found.cells, panels, strict=True):
        _draw_cell(axes, cell)
    panels[-1].set_xlabel("times as fast as the reference, with its 95 % interval")
    return figure


def _draw_cell(axes: Any, cell: Cell) -> None:
    names = [entry.name for entry in cell.entries]
    models = list(dict.fromkeys(entry.model for entry in cell.entries))
    for row, entry in enumerate(cell.entries):
        colour = CLASSES[models.index(entry.model) % len(CLASSES)]
        estimate = cell.against(entry.name, entry.reference)
        if entry.name != entry.reference and math.isfinite(estimate.high):
            axes.plot([estimate.low, estimate.high], [row, row], color=colour, linewidth=2.2)
        filled = colour if entry.name == entry.reference else "white"
        axes.plot(estimate.ratio, row, marker="o", color=colour, markerfacecolor=filled)
        axes.annotate(
            f"{cell.images_per_second(entry.name):.3g} images/s",
            (1.0, row),
            xycoords=axes.get_yaxis_transform(),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
            color=QUIET,
        )
    axes.axvline(1.0, color=FAINT, linewidth=1.2, zorder=0)
    axes.set_yticks(range(len(names)), [literal(name) for name in names])
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.margins(x=0.08)
    axes.grid(axis="x", color=FAINT, linewidth=0.6)
    axes.set_title(f"batch of {cell.batch}", loc="left")


def draw_curve(found: Benchmark) -> Any:
    """Draw accuracy against speed with merged tokens, for each model and engine."""
    figure = new_figure(PAGE, 3.4, gap=0.06)
    panels = figure.subplots(1, len(found.cells), squeeze=False, sharey=True)[0]
    for cell, axes in zip(found.cells, panels, strict=True):
        _draw_curves(axes, found, cell)
        axes.set_title(f"batch of {cell.batch}", loc="left")
        axes.set_xlabel("images a second")
    panels[0].set_ylabel("points of accuracy, with the 95 % interval")
    handles, names = panels[-1].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=2)
    return figure


def _draw_curves(axes: Any, found: Benchmark, cell: Cell) -> None:
    accuracies = {entry: found.accuracy(entry) for entry in cell.entries if entry.ours}
    lines = list(dict.fromkeys((entry.model, entry.runs) for entry in accuracies))
    for number, line in enumerate(lines):
        points = {
            entry: accuracy
            for entry, accuracy in accuracies.items()
            if accuracy is not None and (entry.model, entry.runs) == line
        }
        if points:
            _draw_curve(axes, cell, points, number)
    axes.axhline(0.0, color=FAINT, linewidth=1.2, zorder=0)
    axes.grid(color=FAINT, linewidth=0.6)
    axes.margins(x=0.14)


def _draw_curve(axes: Any, cell: Cell, points: dict[Entry, Accuracy], number: int) -> None:
    """Draw one line, each point labelled with its number of merged tokens."""
    speeds = [cell.images_per_second(entry.name) for entry in points]
    heights = [100 * accuracy.change for accuracy in points.values()]
    bounds = [accuracy.change_interval for accuracy in points.values()]
    first, base = next(iter(points.items()))
    axes.errorbar(
        speeds,
        heights,
        yerr=[
            [height - 100 * low for height, (low, _) in zip(heights, bounds, strict=True)],
            [100 * high - height for height, (_, high) in zip(heights, bounds, strict=True)],
        ],
        color=CLASSES[number % len(CLASSES)],
        marker=MARKERS[number % len(MARKERS)],
        markersize=5,
        elinewidth=0.9,
        capsize=2,
        label=literal(
            f"{first.model} {first.runs}, {base.accuracy:.1%} with R={base.merge_tokens}"
        ),
    )
    for entry, speed, height in zip(points, speeds, heights, strict=True):
        axes.annotate(
            f"R={entry.merge_tokens}",
            (speed, height),
            xytext=(4, 5),
            textcoords="offset points",
            fontsize=8,
            color=INK,
        )


# A benchmark as files: JSON, Markdown and figures.


def check_output(folder: Path) -> None:
    """Raise if the files cannot be written, before anything is measured."""
    check_folder(folder)
    check_matplotlib()


def write_benchmark(found: Benchmark, folder: Path, command: str | None = None) -> tuple[Path, ...]:
    """benchmark.json, .md, .png and .svg; with accuracies also curve.png and .svg."""
    check_output(folder)
    content = found.to_dict() | {"command": command}
    contents = {
        "benchmark.json": json.dumps(content, indent=1).encode() + b"\n",
        "benchmark.md": markdown(found, command).encode(),
    }
    drawings = {"benchmark": draw_speeds}
    if found.accuracies:
        drawings["curve"] = draw_curve
    with styled():
        for name, draw in drawings.items():
            drawn = draw(found)
            contents |= {f"{name}.{kind}": rendered(drawn, kind) for kind in KINDS}
    return write_files(folder, contents)
