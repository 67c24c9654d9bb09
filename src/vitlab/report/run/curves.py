"""Curves of logged values: loss, accuracy, learning rate, gradient norm."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from vitlab.report.html import Html, element, figure, key
from vitlab.report.language import say
from vitlab.report.numbers import percent, write_number, write_percent
from vitlab.report.run.content import Point
from vitlab.report.svg import Axis, Frame, nice_ticks, path, text, ticks_within

SPLITS = ("train", "validation")
"""The noisy one first; a split evaluated once, at the end, has no curve."""
BUCKETS = 60
"""Points of a curve; more are averaged, and their range is shown as a band."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Chart:
    """Appearance of one logged quantity."""

    name: str
    title: str
    unit: str
    caption: str
    best: Callable[[Iterable[float]], float] | None = None
    """Best value of the held-out images that is marked."""
    share: bool = False
    exact: bool = False
    """True for a formula: drawn without averaging."""
    from_zero: bool = False


CHARTS = (
    Chart(
        name="loss",
        title="Loss",
        unit="cross-entropy, nats",
        caption="Training loss is that of augmented batches, as the optimizer saw it.",
        best=min,
    ),
    Chart(
        name="accuracy",
        title="Accuracy",
        unit="right at the first guess",
        caption="On images held out from training, as they are.",
        best=max,
        share=True,
    ),
    Chart(
        name="balanced",
        title="Balanced accuracy",
        unit="mean recall of the classes",
        caption="On images held out from training, every class counting alike.",
        best=max,
        share=True,
    ),
    Chart(
        name="map",
        title="Mean average precision",
        unit="mean over the labels",
        caption="On images held out from training, as they are.",
        best=max,
        share=True,
    ),
    Chart(
        name="r2",
        title="R²",
        unit="explained share of the variance",
        caption="On images held out from training, as they are; 0 is always the mean.",
        best=max,
    ),
    Chart(
        name="lr",
        title="Learning rate",
        unit="peak × schedule",
        caption="Of the first group of parameters.",
        exact=True,
        from_zero=True,
    ),
    Chart(
        name="grad_norm",
        title="Gradient norm",
        unit="before clipping",
        caption="Spikes are batches that would have thrown the weights far.",
        from_zero=True,
    ),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """A quantity over the steps of one split."""

    split: str
    steps: tuple[float, ...]
    values: tuple[float, ...]
    lows: tuple[float, ...]
    highs: tuple[float, ...]

    @property
    def noisy(self) -> bool:
        """True if points stand for ranges."""
        return self.lows != self.highs


LOSSES = {"map": "binary cross-entropy, nats", "r2": "squared error by the variance"}
"""Name of the loss of a task, by the metric monitored beside it."""


def draw_curves(points: Sequence[Point]) -> Html | None:
    """Draw a figure for each quantity that was logged more than once."""
    logged = {point.name for point in points}
    loss, *others = CHARTS
    loss = replace(loss, unit=next((LOSSES[n] for n in LOSSES if n in logged), loss.unit))
    charts = [_figure(chart, points) for chart in (loss, *others)]
    drawn = [chart for chart in charts if chart is not None]
    return element("div", *drawn, class_="grid two") if drawn else None


def curves_of(points: Sequence[Point], name: str, *, exact: bool = False) -> list[Curve]:
    """Curves of one quantity, by split; of a step logged twice, the later value is used."""
    curves = []
    for split in SPLITS:
        values = {
            point.step: point.value
            for point in points
            if (point.name, point.split) == (name, split) and math.isfinite(point.value)
        }
        if len(values) > 1:
            curves.append(_curve(split, sorted(values.items()), exact=exact))
    return curves


def _curve(split: str, values: list[tuple[int, float]], *, exact: bool) -> Curve:
    size = 1 if exact else math.ceil(len(values) / BUCKETS)
    groups = [values[i : i + size] for i in range(0, len(values), size)]
    return Curve(
        split=split,
        steps=tuple(sum(step for step, _ in group) / len(group) for group in groups),
        values=tuple(sum(value for _, value in group) / len(group) for group in groups),
        lows=tuple(min(value for _, value in group) for group in groups),
        highs=tuple(max(value for _, value in group) for group in groups),
    )


def _figure(chart: Chart, points: Sequence[Point]) -> Html | None:
    curves = curves_of(points, chart.name, exact=chart.exact)
    if not curves:
        return None
    frame = Frame(x=_step_axis(points), y=_value_axis(chart, curves))
    marks = [_mark_best(frame, chart, curve) for curve in curves if curve.split == "validation"]
    lines = (_line(frame, curve) for curve in curves)
    legend = _legend(curves) if len(curves) > 1 or curves[0].split != "train" else None
    return figure(
        chart.title,
        legend,
        frame.draw(*lines, *marks, label=f"{say(chart.title)} over the steps of training"),
        caption=chart.caption,
    )


def _step_axis(points: Sequence[Point]) -> Axis:
    last = max(point.step for point in points)
    epochs = max(point.epoch for point in points)
    passes = f"step (in all {write_number(round(epochs, 1))} epochs)" if epochs else "step"
    return Axis(
        title=passes, ticks=ticks_within(0, last), write=write_number, low=0, high=max(last, 1)
    )


def _value_axis(chart: Chart, curves: Sequence[Curve]) -> Axis:
    # Spikes may leave the drawing, curves may not.
    low = 0.0 if chart.from_zero else min(min(curve.values) for curve in curves)
    high = max(max(curve.values) for curve in curves)
    ticks = nice_ticks(low, high)
    if chart.share:  # a share that does not change would have an axis beyond 100 %
        ticks = [tick for tick in ticks if 0.0 <= tick <= 1.0]
        ticks = ticks if len(ticks) > 1 else [0.0, 0.25, 0.5, 0.75, 1.0]
    return Axis(
        title=chart.unit,
        ticks=ticks,
        write=write_percent if chart.share else write_number,
        low=ticks[0],
        high=ticks[-1],
    )


def _line(frame: Frame, curve: Curve) -> Html:
    places = [
        (frame.across(step), frame.up(value))
        for step, value in zip(curve.steps, curve.values, strict=True)
    ]
    dots = [] if curve.noisy or len(places) > 40 else places
    return element(
        "g",
        _band(frame, curve) if curve.noisy else None,
        element("path", class_="line", d=path(places)),
        *(element("circle", class_="dot", cx=x, cy=y, r=2.6) for x, y in dots),
        class_=curve.split,
    )


def _band(frame: Frame, curve: Curve) -> Html:
    limit = frame.up
    top = [
        (frame.across(x), limit(min(y, frame.y.high)))
        for x, y in zip(curve.steps, curve.highs, strict=True)
    ]
    foot = [
        (frame.across(x), limit(max(y, frame.y.low)))
        for x, y in zip(curve.steps, curve.lows, strict=True)
    ]
    return element("path", class_="band", d=f"{path(top + foot[::-1])}Z")


def _mark_best(frame: Frame, chart: Chart, curve: Curve) -> Html | None:
    if chart.best is None or curve.noisy:
        return None
    value = chart.best(curve.values)
    step = curve.steps[curve.values.index(value)]
    x, y = frame.across(step), frame.up(value)
    shown = percent(value) if chart.share else f"{value:.3f}"
    right = x > (frame.left + frame.width) / 2
    below = y < frame.top + 20
    return element(
        "g",
        element("circle", class_="ring", cx=x, cy=y, r=5.5),
        text(
            x + (6 if right else -6),
            y + (20 if below else -11),
            say(f"best {shown}"),
            kind="mark",
            anchor="end" if right else "start",
        ),
        class_=curve.split,
    )


def _legend(curves: Sequence[Curve]) -> Html:
    """A short piece of each line with its name."""
    line = element("line", class_="line", x1=1, x2=25, y1=6, y2=6)
    dot = element("circle", class_="dot", cx=13, cy=6, r=2.6)
    keys = (
        key(curve.split, line, None if curve.noisy else dot, kind=curve.split, width=26)
        for curve in curves
    )
    return element("div", *keys, class_="legend")
