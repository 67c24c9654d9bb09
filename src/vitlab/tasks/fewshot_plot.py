"""Accuracy against the number of shots, with the interval over draws."""

from pathlib import Path
from typing import Any

from vitlab.drawn_text import literal
from vitlab.errors import FileError, MissingExtra
from vitlab.files import check_parent, replacing
from vitlab.tasks.fewshot import FewShot

NAMES = {
    "least-squares": "least squares",
    "knn": "nearest neighbours",
    "logistic": "logistic regression",
}
COLOURS = {"least-squares": "#1f5fa8", "knn": "#c2611f", "logistic": "#2f7d4f"}
MARKERS = {"least-squares": "o", "knn": "s", "logistic": "^"}
"""Methods are told apart without colours too."""
INK, FAINT = "#1f2430", "#d9dce1"


def check_plot(path: Path) -> None:
    """Refuse what cannot be plotted, before anything is computed."""
    if path.suffix.lower() != ".png":
        raise FileError(f"{path}: the plot is a PNG; valid: a name that ends in .png")
    check_parent(path)
    _figure()


def write_plot(found: FewShot, path: Path) -> None:
    """Write the plot as a PNG."""
    figure = _figure()(figsize=(6.4, 4.2), dpi=200, layout="constrained")
    axes = figure.add_subplot()
    shots = sorted({score.shots for score in found.scores})
    methods = list(dict.fromkeys(score.method for score in found.scores))
    for number, method in enumerate(methods):
        _draw(axes, found, method, shots, offset=0.06 * (number - (len(methods) - 1) / 2))
    _dress(axes, found, shots)
    with replacing(path) as file:
        figure.savefig(file, format="png")


def _draw(axes: Any, found: FewShot, method: str, shots: list[int], offset: float) -> None:
    """One method; marks stand beside one another, so that no interval hides another."""
    scores = [score for score in found.scores if score.method == method]
    places = [shots.index(score.shots) + offset for score in scores]
    means = [100 * score.mean for score in scores]
    bounds = [score.interval or (score.mean, score.mean) for score in scores]
    below = [mean - 100 * low for mean, (low, _) in zip(means, bounds, strict=True)]
    above = [100 * high - mean for mean, (_, high) in zip(means, bounds, strict=True)]
    axes.errorbar(
        places,
        means,
        yerr=[below, above],
        label=NAMES[method],
        color=COLOURS[method],
        marker=MARKERS[method],
        markersize=5,
        linewidth=1.5,
        elinewidth=1.2,
        capsize=3,
    )


def _dress(axes: Any, found: FewShot, shots: list[int]) -> None:
    axes.set_xticks(range(len(shots)), [str(count) for count in shots])
    axes.set_xlim(-0.4, len(shots) - 0.6)
    axes.set_xlabel("labelled images of each class", color=INK)
    axes.set_ylabel("test accuracy, %", color=INK)
    title = f"{Path(found.model).stem} on {found.data}, frozen features"
    axes.set_title(literal(title), color=INK)
    axes.grid(axis="y", color=FAINT, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    note = f"{found.test_images:,} test images; mean of {found.draws} draws"
    note += ", bars: 95 % interval" if found.draws > 1 else ""
    axes.legend(loc="lower right", frameon=False, title=note, title_fontsize=8, fontsize=9)


def _figure() -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtra("plots", "--plot") from error
    return Figure
