"""Figures of an experiment, for a paper: results of the arms, and their differences."""

import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from vitlab.experiments.findings import Findings, amount, points, sides
from vitlab.experiments.folder import Result
from vitlab.experiments.spec import Arm
from vitlab.experiments.statistics import Difference, Summary
from vitlab.io.text import literal
from vitlab.report.plots import (
    BLUE,
    CLASSES,
    FAINT,
    INK,
    MARKERS,
    ORANGE,
    PAGE,
    QUIET,
    new_figure,
)

ROW = 0.27
"""Inches of a line of text beside a figure."""
OVER = {"seeds": "seeds", "images": "test images", "draws": "draws of the few images"}
"""Sources of variation of an interval, in words."""
LONGEST = 42
"""Letters of an arm's title beside a figure."""
TICKS = 6
"""Maximum number of labelled ticks of an axis of compute."""


def draw(found: Findings) -> dict[str, Any]:
    """Draw every figure whose numbers were measured, by name."""
    makers: dict[str, Callable[[Findings], Any]] = {
        "accuracy": draw_values,
        "differences": draw_differences,
        "gradients": draw_gradients,
        "cost": draw_cost,
    }
    made = {name: make(found) for name, make in makers.items()}
    return {name: figure for name, figure in made.items() if figure is not None}


def measure(found: Findings) -> str:
    """Compared metric, in words."""
    if found.experiment.measure == "few-shot":
        return "linear 5-shot accuracy in %"
    return "test accuracy in %"


def draw_values(found: Findings) -> Any:
    """Lines of series, or a line of dots for each arm."""
    if not found.results:
        return None
    series = {
        name: places
        for name, arms in found.experiment.series.items()
        if (places := _places(found, arms))
    }
    return _draw_series(found, series) if series else _draw_arms(found)


def _places(found: Findings, arms: Sequence[Arm]) -> list[tuple[float, Summary]]:
    """Horizontal position of each arm that has a result."""
    known, places = found.summaries, []
    for arm in arms:
        summary = known.get(arm.name)
        if summary is None:
            continue
        x = summary.pflops if found.experiment.axis.of == "compute" else arm.x
        if x is not None:
            places.append((x, summary))
    return sorted(places, key=lambda place: place[0])


def _draw_series(found: Findings, series: dict[str, list[tuple[float, Summary]]]) -> Any:
    figure = new_figure(0.8 * PAGE, 3.6)
    axes = figure.subplots()
    for number, (name, places) in enumerate(series.items()):
        x = [place for place, _ in places]
        axes.errorbar(
            x,
            [100 * summary.mean for _, summary in places],
            yerr=[100 * (summary.deviation or 0.0) for _, summary in places],
            label=literal(name),
            color=CLASSES[number % len(CLASSES)],
            marker=MARKERS[number % len(MARKERS)],
            markersize=5,
            capsize=3,
            linewidth=1.4,
        )
    _dress_x(axes, found, [place for places in series.values() for place, _ in places])
    axes.set_ylabel(measure(found))
    axes.grid(axis="y", color=FAINT, linewidth=0.7)
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))
    return figure


def _dress_x(axes: Any, found: Findings, places: Sequence[float]) -> None:
    axis = found.experiment.axis
    axes.set_xlabel(literal(axis.title))
    if not axis.log or not places or min(places) <= 0:
        return
    axes.set_xscale("log")
    ticks = sorted(set(places) if axis.of == "x" else {float(f"{place:.2g}") for place in places})
    if axis.of == "x" or len(ticks) <= TICKS:
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()


def _draw_arms(found: Findings) -> Any:
    known = found.summaries
    figure = new_figure(PAGE, 0.9 + ROW * len(known))
    axes = figure.subplots()
    rows = range(len(known))
    for row, summary in zip(rows, known.values(), strict=True):
        values = [100 * value for value in summary.values]
        axes.plot(values, [row] * len(values), "o", color=QUIET, markersize=3, alpha=0.6)
        axes.errorbar(
            100 * summary.mean,
            row,
            xerr=100 * (summary.deviation or 0.0),
            fmt="D",
            color=BLUE,
            markersize=5,
            capsize=3,
        )
    most = max((len(summary.values) for summary in known.values()), default=0)
    titles = [
        f"{_short(found.experiment.arm(name).shown)}{_fewer(len(summary.values), most)}"
        for name, summary in known.items()
    ]
    axes.set_yticks(rows, titles)
    axes.set_ylim(len(known) - 0.5, -0.5)
    spread = ": mean, deviation and single seeds" if most > 1 else ", one seed"
    axes.set_xlabel(f"{measure(found)}{spread}")
    axes.grid(axis="x", color=FAINT, linewidth=0.7)
    axes.tick_params(left=False)
    return figure


def draw_differences(found: Findings) -> Any:
    """Draw every difference with its interval; conclusive ones in colour."""
    shown = [item for item in found.differences if item.low is not None]
    if not shown:
        return None
    figure = new_figure(PAGE, 1.0 + 0.36 * len(shown))
    axes = figure.subplots()
    margin = 100 * found.experiment.margin
    axes.axvspan(-margin, margin, color=FAINT, alpha=0.6, linewidth=0)
    axes.axvline(0, color=QUIET, linewidth=0.8)
    for row, item in enumerate(shown):
        _draw_difference(axes, row, item)
    most = max(item.seeds for item in shown)
    titles = [f"{_versus(found, item)}{_fewer(item.seeds, most)}" for item in shown]
    axes.set_yticks(range(len(shown)), titles)
    axes.set_ylim(len(shown) - 0.4, -0.6)
    over = " or ".join(OVER[kind] for kind in OVER if any(item.over == kind for item in shown))
    axes.set_xlabel(
        f"difference in points, 95 % interval over {over}\n(grey: within {amount(margin / 100)})"
    )
    axes.grid(axis="x", color=FAINT, linewidth=0.7)
    axes.tick_params(left=False)
    return figure


def _draw_difference(axes: Any, row: int, item: Difference) -> None:
    assert item.low is not None
    assert item.high is not None
    colour = {"better": BLUE, "worse": ORANGE, "equal": INK}.get(item.verdict, QUIET)
    hollow = item.verdict == "open"
    axes.plot([100 * item.low, 100 * item.high], [row, row], color=colour, linewidth=1.8)
    axes.plot(
        100 * item.mean,
        row,
        "o",
        color=colour,
        markersize=5,
        markerfacecolor="white" if hollow else colour,
    )
    axes.annotate(
        points(item.mean),
        (100 * item.mean, row),
        xytext=(0, 5),
        textcoords="offset points",
        ha="center",
        fontsize=7,
        color=INK,
    )


def _versus(found: Findings, item: Difference) -> str:
    if item.chosen:
        arm, other = (found.experiment.arm(name) for name in (item.arm, item.against))
        return f"best of {_short(arm.series)}\nagainst best of {_short(other.series)}"
    one, two = sides(found.experiment, item)
    return f"{_short(one)}\nagainst {_short(two)}"


def _fewer(seeds: int, most: int) -> str:
    """Note for a row with fewer seeds than others."""
    return "" if seeds == most else f" ({seeds} seed{'' if seeds == 1 else 's'})"


def _short(title: str) -> str:
    return literal(title if len(title) <= LONGEST else f"{title[: LONGEST - 1]}…")


def draw_gradients(found: Findings) -> Any:
    """Draw gradient norms: of each block before step 1, and of the whole model over training."""
    known = _with_probe(found, "gradient_of_block")
    if not known:
        return None
    figure = new_figure(PAGE, 3.4, gap=0.04)
    left, right = figure.subplots(1, 2)
    for number, (arm, results) in enumerate(known.items()):
        look = {
            "color": CLASSES[number % len(CLASSES)],
            "marker": MARKERS[number % len(MARKERS)],
            "markersize": 3.5,
            "linewidth": 1.2,
            "linestyle": "-" if number < len(CLASSES) else "--",
        }
        blocks = _mean_of([result.probes["gradient_of_block"] for result in results])
        left.plot(
            range(1, len(blocks) + 1), blocks, label=_short(found.experiment.arm(arm).shown), **look
        )
        steps, norms = results[0].probes["gradient_step"], results[0].probes["gradient"]
        right.plot(*_thinned(steps, norms), **look)
    left.set_xlabel("block")
    left.xaxis.get_major_locator().set_params(integer=True)
    right.xaxis.get_major_locator().set_params(integer=True)
    left.set_ylabel("norm of the gradient before step 1")
    right.set_xlabel("step (seed 0)")
    right.set_ylabel("whole gradient, before clipping")
    for axes in (left, right):
        axes.set_yscale("log")
        axes.grid(axis="y", color=FAINT, linewidth=0.7)
    figure.legend(loc="outside lower center", ncols=3)
    return figure


def _thinned(steps: list[float], values: list[float], most: int = 25) -> tuple[list[float], ...]:
    """Means of neighbouring points, so that lines stay distinct."""
    size = math.ceil(len(steps) / most) or 1
    starts = range(0, len(steps), size)
    return (
        [statistics.fmean(steps[i : i + size]) for i in starts],
        [statistics.fmean(values[i : i + size]) for i in starts],
    )


def draw_cost(found: Findings) -> Any:
    """Draw time and memory of an update, by series."""
    known = _with_probe(found, "seconds")
    placed = [arm for arms in found.experiment.series.values() for arm in arms if arm.x is not None]
    if not any(arm.name in known for arm in placed):
        return None
    figure = new_figure(PAGE, 3.2, gap=0.04)
    panels = figure.subplots(1, 2)
    kinds = (("seconds", 1e3, "ms of an update"), ("bytes", 1e-6, "MB of an update, at its peak"))
    for axes, (probe, factor, title) in zip(panels, kinds, strict=True):
        for number, (series, arms) in enumerate(found.experiment.series.items()):
            lines = [
                (arm.x, factor * _mean_of([r.probes[probe] for r in known[arm.name]])[0])
                for arm in arms
                if arm.name in known and arm.x is not None
            ]
            if lines:
                axes.plot(
                    *zip(*sorted(lines), strict=True),
                    label=literal(series) if probe == "seconds" else None,
                    color=CLASSES[number % len(CLASSES)],
                    marker=MARKERS[number % len(MARKERS)],
                    markersize=5,
                    linewidth=1.4,
                )
        _dress_x(axes, found, [arm.x for arm in found.experiment.arms if arm.x is not None])
        axes.set_yscale("log")
        axes.set_ylabel(title)
        axes.grid(axis="y", color=FAINT, linewidth=0.7)
    figure.legend(loc="outside lower center", ncols=5)
    return figure


def _with_probe(found: Findings, name: str) -> dict[str, list[Result]]:
    known: dict[str, list[Result]] = {}
    for result in found.results:
        if name in result.probes:
            known.setdefault(result.arm, []).append(result)
    return {arm.name: known[arm.name] for arm in found.experiment.arms if arm.name in known}


def _mean_of(lists: Sequence[Sequence[float]]) -> list[float]:
    """Element-wise mean of lists."""
    return [statistics.fmean(values) for values in zip(*lists, strict=True)]
