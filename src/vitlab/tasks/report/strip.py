"""A figure and its interval on a line, with what guessing gives."""

from vitlab.tasks.report.axes import Scale, svg, text
from vitlab.tasks.report.markup import Html, element
from vitlab.tasks.report.numbers import percent

START, END = 6.0, 334.0


def draw_strip(
    value: float,
    interval: tuple[float, float],
    chance: float | None,
    guess: str,
    *,
    bounds: tuple[float, float],
) -> Html:
    """Filled up to the value, the interval on it, and a mark at `chance`, if there is any."""
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
        else text(mark, 38, f"{guess} {percent(chance)}", anchor="end" if right else "start"),
        size=(340, 42),
        label="The figure and its interval",
    )
