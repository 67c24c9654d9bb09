"""Confusions between classes: a heat map if legible, else a list."""

from collections.abc import Sequence
from dataclasses import dataclass

from vitlab.evaluation.classification import Evaluation
from vitlab.report.html import Html, element, figure, table
from vitlab.report.language import say
from vitlab.report.numbers import percent
from vitlab.report.svg import svg, text

LEGIBLE = 20
"""Maximum number of classes in a heat map."""
HALF_A_PAGE = 12
"""Maximum number of classes in a heat map that leaves room beside it."""
LABEL = 16
"""Letters of a label in a drawing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Confusion:
    """Images of one class that were predicted as another."""

    truth: str
    predicted: str
    count: int
    share: float
    """Share of the images of the true class."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Grid:
    """Part of the confusion matrix with images, and the places of its cells."""

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    counts: tuple[tuple[int, ...], ...]
    cell: float
    left: float
    top: float


def top_confusions(evaluation: Evaluation, count: int) -> list[Confusion]:
    """The pairs of classes that are confused most often, the most frequent first."""
    wrong = evaluation.confusion.clone()
    wrong.fill_diagonal_(0)
    pairs = sorted(wrong.nonzero().tolist(), key=lambda pair: -int(wrong[pair[0], pair[1]]))
    return [
        Confusion(
            truth=evaluation.labels[row],
            predicted=evaluation.labels[column],
            count=int(wrong[row, column]),
            share=int(wrong[row, column]) / evaluation.classes[row].support,
        )
        for row, column in pairs[:count]
    ]


def draw_confusion(evaluation: Evaluation) -> Html | None:
    """Draw the heat map; None for too many classes."""
    present = [i for i, item in enumerate(evaluation.classes) if item.support]
    if len(present) > LEGIBLE:
        return None
    grid = _grid(evaluation, present)
    caption = "Rows are the true classes, columns what the model said, cells numbers of images. "
    shades = "Blue is right, orange is confused; stronger is a larger part of the row"
    strongest = _strongest_mistake(grid)
    scale = f", orange up to {percent(strongest)} of it." if strongest else "."
    return figure(
        "Confusion matrix",
        _heat_map(grid),
        caption=f"{caption}{shades}{scale}",
        kind="wide" if is_wide(evaluation) else None,
    )


def is_wide(evaluation: Evaluation) -> bool:
    """True if the heat map has the width of the page."""
    return sum(1 for item in evaluation.classes if item.support) > HALF_A_PAGE


def list_confusions(evaluation: Evaluation, count: int) -> Html | None:
    """The most frequent confusions as a table."""
    found = top_confusions(evaluation, count)
    if not found:
        return None
    rows = ((item.truth, item.predicted, f"{item.count:,}", percent(item.share)) for item in found)
    heads = ("true", "taken for", "images", "of class")
    return figure("Most frequent confusions", table(heads, rows, numbers=slice(2, None)))


def shorten(label: str, length: int = LABEL) -> str:
    """Label shortened to fit beside a drawing."""
    return label if len(label) <= length else f"{label[: length - 1]}…"


def _grid(evaluation: Evaluation, present: Sequence[int]) -> Grid:
    """Rows and columns of the classes that have images; predictions outside them are `other`."""
    counts = [[int(evaluation.confusion[i, j]) for j in present] for i in present]
    names = [shorten(evaluation.labels[i]) for i in present]
    others = [
        evaluation.classes[i].support - sum(row) for i, row in zip(present, counts, strict=True)
    ]
    columns = list(names)
    if any(others):
        columns.append(say("other"))
        counts = [[*row, other] for row, other in zip(counts, others, strict=True)]
    longest = max(map(len, columns))
    return Grid(
        rows=tuple(names),
        columns=tuple(columns),
        counts=tuple(map(tuple, counts)),
        cell=max(30.0, min(46.0, 560 / len(columns))),
        left=14 + 6.6 * max(map(len, names)),
        top=16 + 4.9 * longest,
    )


def _heat_map(grid: Grid) -> Html:
    strongest = _strongest_mistake(grid) or 1.0
    cells = (
        _cell(grid, row, column, strongest)
        for row in range(len(grid.rows))
        for column in range(len(grid.columns))
    )
    # Room at the right for the last slanted label.
    width = grid.left + grid.cell * len(grid.columns) + grid.top * 0.6
    height = grid.top + grid.cell * len(grid.rows) + 6
    rows = (
        text(grid.left - 8, grid.top + grid.cell * (i + 0.5) + 4, name, anchor="end")
        for i, name in enumerate(grid.rows)
    )
    return svg(
        *cells,
        *rows,
        *_column_labels(grid),
        size=(round(width), round(height)),
        label="Confusion matrix: true classes against predictions",
    )


def _column_labels(grid: Grid) -> list[Html]:
    labels = []
    for i, name in enumerate(grid.columns):
        x, y = grid.left + grid.cell * (i + 0.5), grid.top - 8
        turn = f"rotate(-45 {x:.1f} {y:.1f})"
        labels.append(element("text", name, class_="tick", x=x, y=y, transform=turn))
    return labels


def _cell(grid: Grid, row: int, column: int, strongest: float) -> Html:
    count, total = grid.counts[row][column], sum(grid.counts[row])
    share = count / total
    right = row == column
    strength = share if right else share / strongest
    x, y = grid.left + grid.cell * column, grid.top + grid.cell * row
    box = element(
        "rect",
        element("title", say(f"{grid.rows[row]} taken for {grid.columns[column]}: {count:,}")),
        class_="right" if right else "wrong",
        x=x + 1,
        y=y + 1,
        width=grid.cell - 2,
        height=grid.cell - 2,
        rx=3,
        fill_opacity=max(strength * 0.92, 0.035),
    )
    middle = (x + grid.cell / 2, y + grid.cell / 2 + 4)
    number = text(*middle, f"{count:,}", kind=_ink(strength), anchor="middle")
    return element("g", box, number if count else None)


def _ink(strength: float) -> str:
    """Text colour that is legible on a cell of this strength, in light and dark mode."""
    if strength > 0.85:
        return "count strong"
    return "count middle" if strength > 0.7 else "count"


def _strongest_mistake(grid: Grid) -> float:
    return max(
        (
            count / sum(row)
            for i, row in enumerate(grid.counts)
            for j, count in enumerate(row)
            if i != j
        ),
        default=0.0,
    )
