"""Scales, ticks and the frame of a plot, in SVG."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vitlab.report.html import Child, Html, element, join
from vitlab.report.language import say
from vitlab.report.numbers import percent

STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Scale:
    """Linear map from data values to positions on the page."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        part = (value - self.low) / (self.high - self.low)
        return self.start + part * (self.end - self.start)


@dataclass(frozen=True, kw_only=True, slots=True)
class Axis:
    """An axis of a plot: its range, ticks, and number format."""

    title: str
    ticks: Sequence[float]
    write: Callable[[float], str]
    low: float
    high: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Frame:
    """A plot's size and margins in pixels, and its two scales."""

    x: Axis
    y: Axis
    width: float = 480
    height: float = 280
    left: float = 46
    right: float = 14
    top: float = 26
    bottom: float = 40

    @property
    def across(self) -> Scale:
        """Scale of horizontal positions."""
        return Scale(low=self.x.low, high=self.x.high, start=self.left, end=self.width - self.right)

    @property
    def up(self) -> Scale:
        """Scale of vertical positions, which grow downwards on a page."""
        return Scale(
            low=self.y.low, high=self.y.high, start=self.height - self.bottom, end=self.top
        )

    def draw(self, *content: Child, label: str) -> Html:
        """Plot with its content between grid and axis labels; `label` is for screen readers."""
        return svg(
            self._grid(), *content, self._labels(), size=(self.width, self.height), label=label
        )

    def _grid(self) -> Html:
        rows = (
            element(
                "line",
                class_="axis" if tick == self.y.low else "rule",
                x1=self.left,
                x2=self.width - self.right,
                y1=self.up(tick),
                y2=self.up(tick),
            )
            for tick in self.y.ticks
        )
        return join(rows)

    def _labels(self) -> Html:
        foot = self.height - self.bottom
        middle = (self.left + self.width - self.right) / 2
        return join(
            [
                *(
                    text(self.left - 7, self.up(tick) + 4, self.y.write(tick), anchor="end")
                    for tick in self.y.ticks
                ),
                *(
                    text(self.across(tick), foot + 16, self.x.write(tick), anchor="middle")
                    for tick in self.x.ticks
                ),
                text(4, 13, say(self.y.title), kind="axis-title"),
                text(
                    *(middle, self.height - 5, say(self.x.title)),
                    kind="axis-title",
                    anchor="middle",
                ),
            ]
        )


def svg(*content: Child, size: tuple[float, float], label: str) -> Html:
    """SVG that shrinks with the page, and never grows beyond its own size."""
    width, height = size
    return element(
        "svg",
        *content,
        viewBox=f"0 0 {width:g} {height:g}",
        style=f"max-width:{width:g}px",
        role="img",
        aria_label=say(label),
    )


def text(x: float, y: float, content: str, *, kind: str = "tick", anchor: str = "start") -> Html:
    """A line of text in an SVG."""
    return element("text", content, class_=kind, x=x, y=y, text_anchor=anchor)


def nice_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """About `count` round numbers, the first at or below `low` and the last at or above `high`."""
    if not high > low:
        high = low + (abs(low) or 1.0)
    rough = (high - low) / count
    unit = 10.0 ** math.floor(math.log10(rough))
    step = unit * next(s for s in STEPS if s * unit >= rough * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [_clean(number * step) for number in range(first, last + 1)]


def ticks_within(low: float, high: float, count: int = 6) -> list[float]:
    """Round numbers inside an unchanged range."""
    return [tick for tick in nice_ticks(low, high, count) if low <= tick <= high]


def _clean(value: float) -> float:
    """Value without binary rounding errors: 0.3 instead of 0.30000000000000004."""
    return float(f"{value:.10g}")


def path(places: Sequence[tuple[float, float]]) -> str:
    """A polyline through the places."""
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places)


# A metric and its interval on a line, with the value of guessing.

START, END = 6.0, 334.0


def draw_strip(
    value: float,
    interval: tuple[float, float],
    chance: float | None,
    guess: str,
    *,
    bounds: tuple[float, float],
) -> Html:
    """Draw a bar up to the value, the interval on it, and a mark at `chance`, if given."""
    scale = Scale(low=bounds[0], high=bounds[1], start=START, end=END)
    low, high = (scale(min(max(part, bounds[0]), bounds[1])) for part in interval)
    filled = scale(min(max(value, bounds[0]), bounds[1]))
    mark = START if chance is None else scale(chance)
    right = mark > (START + END) / 2
    return svg(
        element("rect", class_="track", x=START, y=10, width=END - START, height=8, rx=4),
        element("rect", class_="filled", x=START, y=10, width=filled - START, height=8, rx=4),
        element("rect", class_="interval", x=low, y=6, width=max(high - low, 2), height=16, rx=2),
        None if chance is None else element("line", class_="chance", x1=mark, x2=mark, y1=4, y2=24),
        None
        if chance is None
        else text(mark, 38, f"{say(guess)} {percent(chance)}", anchor="end" if right else "start"),
        size=(340, 42),
        label="The figure and its interval",
    )


def draw_value(value: str, meaning: str, uncertainty: str, strip: Html | None) -> Html:
    """Draw the main metric of a report in large type, its meaning, and its interval."""
    return element(
        "div",
        element("div", value, class_="figure"),
        element(
            "p", say(meaning), element("br"), element("span", say(uncertainty), class_="quiet")
        ),
        strip,
        class_="accuracy",
    )


def interval_text(interval: tuple[float, float]) -> str:
    """`95% interval 80.1% to 83.4%`."""
    low, high = interval
    return f"95% interval {percent(low)} to {percent(high)}"
