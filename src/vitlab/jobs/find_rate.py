"""The learning-rate range test as a picture."""

from collections.abc import Sequence
from pathlib import Path

from vitlab.errors import MissingExtra
from vitlab.io.files import replacing
from vitlab.training.find_rate import Trial


def check_plots() -> None:
    """Refuse early where nothing can draw."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise MissingExtra("plots", "the plot of --find-lr") from error


def draw_trials(trials: Sequence[Trial], suggested: float, path: Path) -> None:
    """Loss against rate, with the rate that is taken."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    axes = figure.add_subplot()
    axes.plot([t.rate for t in trials], [t.loss for t in trials], color="#0072b2", linewidth=2)
    axes.axvline(suggested, color="#d55e00", linestyle="--", linewidth=1.5)
    axes.annotate(
        f"taken: {suggested:g}",
        (suggested, max(t.loss for t in trials)),
        textcoords="offset points",
        xytext=(6, -4),
        color="#d55e00",
        va="top",
    )
    axes.set_xscale("log")
    axes.set_xlabel("learning rate")
    axes.set_ylabel("training loss, smoothed")
    axes.set_title("The loss while the rate grows from step to step", loc="left", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", alpha=0.3)
    with replacing(path) as file:
        figure.savefig(file, format="png", dpi=160)
