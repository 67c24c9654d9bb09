"""Single-label reports: accuracy, confusions, mistakes and calibration."""

from collections.abc import Iterator, Sequence

from vitlab.evaluation.classification import Evaluation
from vitlab.evaluation.metrics import ClassMetrics
from vitlab.report.html import Html, element, percent
from vitlab.report.run.confusion import (
    draw_confusion,
    is_wide,
    list_confusions,
    shorten,
    top_confusions,
)
from vitlab.report.run.content import Report
from vitlab.report.run.facts import pairs
from vitlab.report.run.images import draw_mistakes
from vitlab.report.run.reliability import calibration_facts, draw_confidences, draw_reliability
from vitlab.report.svg import Scale, draw_strip, svg, text

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
    return element(
        "figure",
        element("h3", title),
        element("div", _key("precision"), _key("recall"), class_="legend"),
        _bars(shown),
        element(
            "figcaption",
            "Precision: of the images called so, the part that is. "
            "Recall: of the images that are, the part called so.",
        ),
    )


def table_of_classes(evaluation: Evaluation) -> Html:
    """Every class with its numbers, folded."""
    heads = ("class", "precision", "recall", "F1", "images")
    rows = (
        element(
            "tr",
            element("td", item.label),
            *(
                element("td", percent(value), class_="number")
                for value in (item.precision, item.recall, item.f1)
            ),
            element("td", f"{item.support:,}", class_="number"),
        )
        for item in evaluation.classes
    )
    cells = (element("th", name, class_="number" if i else None) for i, name in enumerate(heads))
    head = element("thead", element("tr", *cells))
    table = element("table", head, element("tbody", *rows), class_="list")
    return element("details", element("summary", "All classes as a table"), table)


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
    box = element("rect", class_=kind, x=1, y=2, width=16, height=9, rx=1.5)
    swatch = element("svg", box, viewBox="0 0 18 12", width=18, height=12, aria_hidden="true")
    return element("span", swatch, kind, class_="key")


Section = tuple[str, tuple[Html | None, ...]]
"""A title and its content."""


def figure(evaluation: Evaluation, split: str) -> Html:
    """Accuracy and its interval."""
    low, high = evaluation.interval
    return element(
        "div",
        element("div", percent(evaluation.accuracy), class_="figure"),
        element(
            "p",
            f"of {evaluation.images:,} {split} images right at the first guess",
            element("br"),
            element("span", f"95% interval {percent(low)} to {percent(high)}", class_="quiet"),
        ),
        _strip(evaluation),
        class_="accuracy",
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
        note = element(
            "p",
            "What the model said and how sure it was of it, and what the image is. "
            "The surest come first.",
            class_="quiet",
        )
        yield "The most confident mistakes", (note, draw_mistakes(report.mistakes))
    reliability = element(
        "div",
        draw_reliability(evaluation),
        element("div", draw_confidences(evaluation), pairs(calibration_facts(evaluation))),
        class_="grid two",
    )
    yield "Does it know when it is wrong?", (reliability,)
