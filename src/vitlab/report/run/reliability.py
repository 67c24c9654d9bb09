"""Calibration of the model: confidence against accuracy."""

from collections.abc import Iterator

from vitlab.evaluation.calibration import Bin, Reliability
from vitlab.evaluation.classification import Evaluation
from vitlab.report.html import Html, element, join, percent
from vitlab.report.run.curves import path
from vitlab.report.svg import Axis, Frame, write_percent

RARE = 0.001
"""Bins with a smaller share of the images are not meaningful."""
TICKS = (0.0, 0.25, 0.5, 0.75, 1.0)


def draw_reliability(evaluation: Evaluation) -> Html:
    """Draw accuracy by confidence, without and with temperature."""
    scaled = evaluation.scaled
    after = None if scaled is None else scaled.reliability
    keys = [_bar_key()] if after is None else [_bar_key(), _line_key()]
    return element(
        "figure",
        element("h3", "Reliability diagram"),
        element("div", *keys, class_="legend"),
        _diagram(evaluation.reliability, after),
        element(
            "figcaption",
            "On the dashed line, a model that says 80% is right 80% of the time; "
            "bars below it: it is too sure of itself. Bins with fewer than 0.1% of the images "
            "are left out.",
        ),
    )


def draw_confidences(evaluation: Evaluation) -> Html:
    """Draw the number of images at each confidence."""
    bins = evaluation.reliability.bins
    top = max(item.count for item in bins) / evaluation.images
    high = next(limit for limit in (0.1, 0.2, 0.4, 0.6, 0.8, 1.0) if top <= limit)
    frame = Frame(
        x=_axis("confidence"),
        y=Axis(
            title="images", ticks=(0.0, high / 2, high), write=write_percent, low=0.0, high=high
        ),
        height=160,
    )
    bars = (
        _bar(frame, item.low, item.high, item.count / evaluation.images, "neutral") for item in bins
    )
    return element(
        "figure",
        element("h3", "How sure it is"),
        frame.draw(*bars, label="Number of images by confidence"),
        element("figcaption", "Probability of the predicted class, before any temperature."),
    )


def calibration_facts(evaluation: Evaluation) -> list[tuple[str, str]]:
    """Errors and losses before and after the temperature, as rows."""
    rows = [
        ("calibration error (ECE)", percent(evaluation.reliability.ece, 2)),
        ("loss", f"{evaluation.loss:.4f}"),
    ]
    scaled = evaluation.scaled
    if scaled is None:
        return rows
    images = f"{scaled.temperature.images:,} held-out images"
    return [
        *rows,
        ("temperature", f"{scaled.temperature.value:.3f}, fitted on {images}"),
        ("ECE with temperature", percent(scaled.reliability.ece, 2)),
        ("loss with temperature", f"{scaled.loss:.4f}"),
    ]


def _axis(title: str) -> Axis:
    return Axis(title=title, ticks=TICKS, write=write_percent, low=0.0, high=1.0)


def _diagram(before: Reliability, after: Reliability | None) -> Html:
    frame = Frame(x=_axis("confidence"), y=_axis("accuracy"), height=340)
    bars = (
        _bar(frame, item.low, item.high, item.accuracy, "before")
        for item in _telling(before)
        if item.accuracy is not None
    )
    ideal = [(frame.across(end), frame.up(end)) for end in (0.0, 1.0)]
    return frame.draw(
        *bars,
        element("path", class_="ideal", d=path(ideal)),
        None if after is None else _after(frame, after),
        label="Accuracy against confidence",
    )


def _after(frame: Frame, after: Reliability) -> Html:
    places = list(_places(frame, after))
    dots = (element("circle", class_="dot", cx=x, cy=y, r=3) for x, y in places)
    return element("g", element("path", class_="line", d=path(places)), *dots, class_="after")


def _places(frame: Frame, found: Reliability) -> Iterator[tuple[float, float]]:
    for item in _telling(found):
        if item.accuracy is not None and item.confidence is not None:
            yield frame.across(item.confidence), frame.up(item.accuracy)


def _telling(found: Reliability) -> list[Bin]:
    total = sum(item.count for item in found.bins)
    return [item for item in found.bins if item.count and item.count >= RARE * total]


def _bar(frame: Frame, low: float, high: float, value: float, kind: str) -> Html:
    x, y = frame.across(low), frame.up(value)
    return element(
        "rect",
        class_=kind,
        x=x + 1,
        y=y,
        width=frame.across(high) - x - 2,
        height=frame.up(frame.y.low) - y,
    )


def _bar_key() -> Html:
    box = element("rect", class_="before", x=1, y=1, width=16, height=10)
    return _key(box, "as trained", "")


def _line_key() -> Html:
    line = element("line", class_="line", x1=0, x2=18, y1=6, y2=6)
    return _key(
        join([line, element("circle", class_="dot", cx=9, cy=6, r=3)]), "with temperature", "after"
    )


def _key(drawn: Html, name: str, kind: str) -> Html:
    swatch = element(
        "svg", drawn, class_=kind, viewBox="0 0 18 12", width=18, height=12, aria_hidden="true"
    )
    return element("span", swatch, name, class_="key")
