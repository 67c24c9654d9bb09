"""Single-label reports: accuracy, confusions, mistakes and calibration."""

from collections.abc import Iterator, Sequence

from vitlab.evaluation.calibration import Bin, Reliability
from vitlab.evaluation.classification import Evaluation
from vitlab.evaluation.metrics import ClassMetrics
from vitlab.report.html import Html, element, figure, folded, key, pairs, table
from vitlab.report.numbers import percent, write_percent
from vitlab.report.run.confusion import (
    draw_confusion,
    is_wide,
    list_confusions,
    shorten,
    top_confusions,
)
from vitlab.report.run.content import Report, Section, View
from vitlab.report.run.images import draw_mistakes, mistakes_in
from vitlab.report.svg import (
    Axis,
    Frame,
    Scale,
    draw_strip,
    draw_value,
    interval_text,
    path,
    svg,
    text,
)

# Metrics of each class: precision and recall as bars, and the whole table folded away.

SHOWN = 20
"""Number of classes with bars; of more, the weakest."""
ROW = 30.0
WIDTH = 470.0


def draw_classes(evaluation: Evaluation) -> Html:
    """Draw bars of precision and recall by class, in class order, or of the weakest ones."""
    present = [item for item in evaluation.classes if item.support]
    shown = sorted(present, key=_f1)[:SHOWN] if len(present) > SHOWN else present
    title = "Precision and recall by class"
    if len(shown) < len(present):
        title = f"The {len(shown)} weakest of {len(present):,} classes"
    return figure(
        title,
        element("div", _key("precision"), _key("recall"), class_="legend"),
        _bars(shown),
        caption="Precision: of the images called so, the part that is. "
        "Recall: of the images that are, the part called so.",
    )


def table_of_classes(evaluation: Evaluation) -> Html:
    """Every class with its numbers, folded."""
    rows = (
        (item.label, *map(percent, (item.precision, item.recall, item.f1)), f"{item.support:,}")
        for item in evaluation.classes
    )
    heads = ("class", "precision", "recall", "F1", "images")
    return folded("All classes as a table", table(heads, rows))


def _f1(item: ClassMetrics) -> float:
    return item.f1 or 0.0


def _bars(classes: Sequence[ClassMetrics]) -> Html:
    names = [shorten(item.label) for item in classes]
    left = 14 + 6.6 * max(map(len, names))
    scale = Scale(low=0, high=1, start=left, end=WIDTH - 52)
    height = ROW * len(classes) + 26
    grid = (
        element(
            "line", class_="rule", x1=scale(part), x2=scale(part), y1=0, y2=ROW * len(classes) + 4
        )
        for part in (0, 0.25, 0.5, 0.75, 1)
    )
    marks = (
        text(scale(part), height - 6, percent(part, 0), anchor="middle")
        for part in (0, 0.25, 0.5, 0.75, 1)
    )
    rows = (
        _row(scale, ROW * i + 4, name, item)
        for i, (name, item) in enumerate(zip(names, classes, strict=True))
    )
    size = (WIDTH, round(height))
    return svg(*grid, *rows, *marks, size=size, label="Precision and recall of each class")


def _row(scale: Scale, y: float, name: str, item: ClassMetrics) -> Html:
    bars = []
    for i, (kind, value) in enumerate((("precision", item.precision), ("recall", item.recall))):
        top = y + 12 * i
        end = scale(value or 0)
        bars.append(
            element(
                "rect", class_=kind, x=scale.start, y=top, width=end - scale.start, height=9, rx=1.5
            )
        )
        bars.append(text(end + 5, top + 8.5, percent(value), kind="value"))
    return element("g", text(scale.start - 8, y + 14, name, anchor="end"), *bars)


def _key(kind: str) -> Html:
    return key(kind, element("rect", class_=kind, x=1, y=2, width=16, height=9, rx=1.5))


def headline(evaluation: Evaluation, split: str) -> Html:
    """Accuracy and its interval."""
    return draw_value(
        percent(evaluation.accuracy),
        f"of {evaluation.images:,} {split} images right at the first guess",
        interval_text(evaluation.interval),
        _strip(evaluation),
    )


def _strip(evaluation: Evaluation) -> Html:
    """Draw the interval on a line from 0 to 100 %, with the accuracy of guessing."""
    present = sum(1 for item in evaluation.classes if item.support)
    chance = max((item.support for item in evaluation.classes), default=0) / evaluation.images
    return draw_strip(
        evaluation.accuracy,
        evaluation.interval,
        chance if present > 1 else None,
        "always one class",
        bounds=(0, 1),
    )


def tiles(evaluation: Evaluation) -> Iterator[tuple[str, str]]:
    """Further metrics beside the accuracy."""
    if evaluation.top < len(evaluation.labels):
        yield f"top-{evaluation.top} accuracy", percent(evaluation.top5)
    yield "balanced accuracy", percent(evaluation.balanced)
    yield "cross-entropy", f"{evaluation.loss:.3f}"
    yield "calibration error", percent(evaluation.reliability.ece)


def findings(evaluation: Evaluation) -> Iterator[str]:
    """Main findings, as sentences."""
    present = [item for item in evaluation.classes if item.support]
    if len(present) > 1:
        best = max(present, key=lambda item: item.recall or 0)
        worst = min(present, key=lambda item: item.recall or 0)
        if best.recall != worst.recall:
            yield (
                f"Recognised best: {best.label} ({percent(best.recall)} of its images); "
                f"least: {worst.label} ({percent(worst.recall)})."
            )
    confused = top_confusions(evaluation, 1)
    if confused:
        pair = confused[0]
        times = "once" if pair.count == 1 else f"{pair.count:,} times"
        yield f"Most frequent confusion: {pair.truth} taken for {pair.predicted}, {times}."
    yield from _sureness(evaluation)


def _sureness(evaluation: Evaluation) -> Iterator[str]:
    bins = [item for item in evaluation.reliability.bins if item.count]
    sure = sum(item.count * (item.confidence or 0) for item in bins) / evaluation.images
    gap = sure - evaluation.accuracy
    word = "about as sure as it may be" if abs(gap) < 0.02 else "surer than it should be"
    if gap <= -0.02:
        word = "less sure than it could be"
    right = percent(evaluation.accuracy)
    yield f"The model is {word}: mean confidence {percent(sure)} where {right} are right."


def sections(report: Report) -> Iterator[Section]:
    """Confusions, mistakes and calibration."""
    evaluation = report.evaluation
    assert isinstance(evaluation, Evaluation)
    matrix, bars = draw_confusion(evaluation), draw_classes(evaluation)
    shown: list[Html | None]
    if matrix is None or is_wide(evaluation):
        listed = list_confusions(evaluation, 20 if matrix is None else 12)
        shown = [matrix, element("div", bars, listed, class_="grid two")]
    else:
        beside = element("div", bars, list_confusions(evaluation, 5))
        shown = [element("div", matrix, beside, class_="grid matrix")]
    yield "Where it is right and wrong", (*shown, table_of_classes(evaluation))
    if report.mistakes:
        note = (
            "What the model said and how sure it was of it, and what the image is. "
            "The surest come first."
        )
        yield "The most confident mistakes", draw_mistakes(note, report.mistakes)
    reliability = element(
        "div",
        draw_reliability(evaluation),
        element("div", draw_confidences(evaluation), pairs(calibration_facts(evaluation))),
        class_="grid two",
    )
    yield "Does it know when it is wrong?", (reliability,)


# Calibration: confidence against accuracy.

RARE = 0.001
"""Bins with a smaller share of the images are not meaningful."""
TICKS = (0.0, 0.25, 0.5, 0.75, 1.0)


def draw_reliability(evaluation: Evaluation) -> Html:
    """Draw accuracy by confidence, without and with temperature."""
    scaled = evaluation.scaled
    after = None if scaled is None else scaled.reliability
    keys = [key("as trained", element("rect", class_="before", x=1, y=1, width=16, height=10))]
    if after is not None:
        line = element("line", class_="line", x1=0, x2=18, y1=6, y2=6)
        dot = element("circle", class_="dot", cx=9, cy=6, r=3)
        keys.append(key("with temperature", line, dot, kind="after"))
    return figure(
        "Reliability diagram",
        element("div", *keys, class_="legend"),
        _diagram(evaluation.reliability, after),
        caption="On the dashed line, a model that says 80% is right 80% of the time; "
        "bars below it: it is too sure of itself. Bins with fewer than 0.1% of the images "
        "are left out.",
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
    return figure(
        "How sure it is",
        frame.draw(*bars, label="Number of images by confidence"),
        caption="Probability of the predicted class, before any temperature.",
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
        for item in _filled_bins(before)
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
    for item in _filled_bins(found):
        if item.accuracy is not None and item.confidence is not None:
            yield frame.across(item.confidence), frame.up(item.accuracy)


def _filled_bins(found: Reliability) -> list[Bin]:
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


VIEW = View(
    headline=headline, tiles=tiles, findings=findings, sections=sections, mistakes=mistakes_in
)
