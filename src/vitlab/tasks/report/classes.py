"""How well each class is told: precision and recall as bars, and the whole table folded away."""

from collections.abc import Sequence

from vitlab.evaluate.classify import Evaluation
from vitlab.evaluate.metrics import ClassMetrics
from vitlab.tasks.report.axes import Scale, svg, text
from vitlab.tasks.report.confusion import shorten
from vitlab.tasks.report.markup import Html, element
from vitlab.tasks.report.numbers import percent

SHOWN = 20
"""Classes that get bars; of more, the weakest."""
ROW = 30.0
WIDTH = 470.0


def draw_classes(evaluation: Evaluation) -> Html:
    """Bars of precision and recall by class, in the order of the classes, or the weakest ones."""
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
