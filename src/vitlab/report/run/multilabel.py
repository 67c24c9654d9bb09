"""Multi-label reports: metrics of each label, and the worst mistakes."""

from collections.abc import Iterator, Sequence

from vitlab.evaluation.multilabel import LabelMetrics, MultiLabelEvaluation
from vitlab.report.html import Html, element, figure, folded, table
from vitlab.report.numbers import percent
from vitlab.report.run.confusion import shorten
from vitlab.report.run.content import Report, Section, View
from vitlab.report.run.images import draw_mistakes, wrong_labels_in
from vitlab.report.svg import Scale, draw_strip, draw_value, interval_text, svg, text

SHOWN = 25
"""Number of labels with bars; of more, the weakest."""
ROW, WIDTH = 20.0, 520.0


def headline(evaluation: MultiLabelEvaluation, split: str) -> Html:
    """Mean average precision and its interval."""
    return draw_value(
        percent(evaluation.map),
        f"mean average precision of {len(evaluation.labels):,} labels on "
        f"{evaluation.images:,} {split} images",
        interval_text(evaluation.interval),
        draw_strip(
            evaluation.map, evaluation.interval, evaluation.chance, "knowing nothing", bounds=(0, 1)
        ),
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
        note = (
            "Labels that the model gave and those that the image has; on the image the label "
            "it was most wrong about, with its probability."
        )
        yield "The worst mistakes", draw_mistakes(note, report.mistakes)


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
    return figure(title, _drawn(shown, evaluation.images), caption=caption)


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
    rows = (
        (
            item.label,
            *map(percent, (item.average_precision, item.precision, item.recall, item.f1)),
            f"{item.support:,}",
        )
        for item in evaluation.classes
    )
    heads = ("label", "average precision", "precision", "recall", "F1", "images")
    return folded("All labels as a table", table(heads, rows))


VIEW = View(
    headline=headline, tiles=tiles, findings=findings, sections=sections, mistakes=wrong_labels_in
)
