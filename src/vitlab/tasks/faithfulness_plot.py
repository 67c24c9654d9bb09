"""The curves of deletion and insertion: probability against the patches that went, or came."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitlab.drawn_text import literal
from vitlab.explain.figure import INK, SOFT, new_figure, save
from vitlab.tasks.faithfulness import RANDOM, Area, Faithfulness

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Colours that the colour-blind tell apart (Okabe and Ito), and dashes for everybody.
STYLES: dict[str, tuple[str, Any]] = {
    "attention": ("#0072b2", "-"),
    "rollout": ("#009e73", (0, (6, 2))),
    "relevance": ("#d55e00", "-"),
    "gradcam": ("#cc79a7", (0, (3, 1, 1, 1))),
    "input-gradient": ("#e69f00", (0, (2, 1))),
    RANDOM: ("#555555", (0, (1, 2))),
}
FAINT = "#d9dce1"


def write_plot(found: Faithfulness, path: Path) -> None:
    """Write the figure: PNG, SVG or PDF, by the name."""
    save(plot(found), path)


def plot(found: Faithfulness) -> "Figure":
    """Both tests side by side; the number is the area under the mean curve."""
    figure = new_figure()(figsize=(9.6, 4.3), dpi=150, layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for score in found.scores:
        _draw(left, found, score.method, score.deletion_curve, score.deletion)
        _draw(right, found, score.method, score.insertion_curve, score.insertion)
    _dress(left, "deletion: a low curve is a true map", "patches taken away, %", "upper right")
    _dress(right, "insertion: a high curve is a true map", "patches given back, %", "lower right")
    left.set_ylabel("mean probability of the predicted class", color=INK)
    note = f"{Path(found.model).name}, {found.images:,} images; removed patches: {found.removed}"
    figure.suptitle(literal(note), fontsize=10, color=SOFT)
    return figure


def _draw(
    axes: Any, found: Faithfulness, method: str, curve: tuple[float, ...], area: Area
) -> None:
    colour, dashes = STYLES[method]
    axes.plot(
        [100 * share for share in found.shares],
        curve,
        color=colour,
        linestyle=dashes,
        linewidth=1.8,
        label=f"{method}  {area.mean:.3f}",
    )


def _dress(axes: Any, title: str, across: str, legend: str) -> None:
    axes.set_title(title, fontsize=11, color=INK)
    axes.set_xlabel(across, color=INK)
    axes.set_xlim(0, 100)
    axes.set_ylim(bottom=0)
    axes.grid(color=FAINT, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc=legend, frameon=False, fontsize=9, title="area under the curve")
