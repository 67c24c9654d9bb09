"""Multi-label reports: metrics of each label, and the worst mistakes."""

from collections.abc import Iterator, Sequence

from vitlab.evaluation.multilabel import LabelMetrics, MultiLabelEvaluation
from vitlab.report.html import Html, element, percent
from vitlab.report.run.classification import Section
from vitlab.report.run.confusion import shorten
from vitlab.report.run.content import Report
from vitlab.report.run.images import draw_mistakes
from vitlab.report.svg import Scale, draw_strip, svg, text

SHOWN = 25
"""Number of labels with bars; of more, the weakest."""
ROW, WIDTH = 20.0, 520.0


def figure(evaluation: MultiLabelEvaluation, split: str) -> Html:
    """Mean average precision and its interval."""
    low, high = evaluation.interval
    return element(
        "div",
        element("div", percent(evaluation.map), class_="figure"),
        element(
            "p",
            f"mean average precision of {len(evaluation.labels):,} labels on "
            f"{evaluation.images:,} {split} images",
            element("br"),
            element("span", f"95% interval {percent(low)} to {percent(high)}", class_="quiet"),
        ),
        draw_strip(
            evaluation.map, evaluation.interval, evaluation.chance, "knowing nothing", bounds=(0, 1)
        ),
        class_="accuracy",
    )


def tiles(evaluation: MultiLabelEvaluation) -> Iterator[tuple[str, str]]:
    """Metrics of the predicted labels."""
    yield "micro F1", percent(evaluation.micro_f1)
    yield "macro F1", percent(evaluation.macro_f1)
    yield "all labels right", percent(evaluation.exact)
    yield "binary cross-entropy", f"{evaluation.loss:.3f}"


def findings(evaluation: MultiLabelEvaluation) -> Iterator[str]:
    """Main findings, as sentences."""
    present = [item for item in evaluation.classes if item.support]
    if len(present) > 1:
        best, worst = max(present, key=_precision), min(present, key=_precision)
        yield (
            f"Found best: {best.label} (average precision {percent(best.average_precision)}); "
            f"least: {worst.label} ({percent(worst.average_precision)})."
        )
    yield f"A label is given from a probability of {percent(evaluation.threshold, 0)} on."


def sections(report: Report) -> Iterator[Section]:
    """Metrics of each label, and the worst mistakes."""
    evaluation = report.evaluation
    assert isinstance(evaluation, MultiLabelEvaluation)
    bars = _bars(evaluation) if any(item.support for item in evaluation.classes) else None
    yield "How well each label is found", (bars, _table(evaluation))
    if report.mistakes:
        note = element(
            "p",
            "Labels that the model gave and those that the image has; on the picture the label "
            "it was most wrong about, with its probability.",
            class_="quiet",
        )
        yield "The worst mistakes", (note, draw_mistakes(report.mistakes))


def _precision(item: LabelMetrics) -> float:
    return item.average_precision or 0.0


def _bars(evaluation: MultiLabelEvaluation) -> Html:
    present = [item for item in evaluation.classes if item.support]
    shown = sorted(present, key=_precision)[:SHOWN] if len(present) > SHOWN else present
    title = "Average precision by label"
    if len(shown) < len(present):
        title = f"The {len(shown)} weakest of {len(present):,} labels"
    caption = (
        "Average precision: images ranked by the label's probability, and the mean precision "
        "down to each image that has it. The mark is what chance gives: the share of images "
        "with the label."
    )
    return element(
        "figure",
        element("h3", title),
        _drawn(shown, evaluation.images),
        element("figcaption", caption),
    )


def _drawn(items: Sequence[LabelMetrics], images: int) -> Html:
    names = [shorten(item.label) for item in items]
    scale = Scale(low=0, high=1, start=14 + 6.6 * max(map(len, names)), end=WIDTH - 52)
    rows = []
    for i, (name, item) in enumerate(zip(names, items, strict=True)):
        y, chance = ROW * i + 3, scale(item.support / images)
        value = item.average_precision
        end = scale(value or 0)
        width = end - scale.start
        rows.append(text(scale.start - 8, y + 11, name, anchor="end"))
        rows.append(
            element("rect", class_="right", x=scale.start, y=y, width=width, height=13, rx=2)
        )
        rows.append(element("line", class_="chance", x1=chance, x2=chance, y1=y - 2, y2=y + 15))
        rows.append(text(max(end, chance) + 5, y + 11, percent(value), kind="value"))
    height = round(ROW * len(items) + 6)
    return svg(*rows, size=(WIDTH, height), label="Average precision of each label")


def _table(evaluation: MultiLabelEvaluation) -> Html:
    heads = ("label", "average precision", "precision", "recall", "F1", "images")
    rows = (
        element(
            "tr",
            element("td", item.label),
            *(
                element("td", percent(value), class_="number")
                for value in (item.average_precision, item.precision, item.recall, item.f1)
            ),
            element("td", f"{item.support:,}", class_="number"),
        )
        for item in evaluation.classes
    )
    cells = (element("th", name, class_="number" if i else None) for i, name in enumerate(heads))
    head = element("thead", element("tr", *cells))
    table = element("table", head, element("tbody", *rows), class_="list")
    return element("details", element("summary", "All labels as a table"), table)
