"""Style of figures: sizes and type for a paper, colours for every kind of colour vision."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from jaxtyping import Float

from vitlab.errors import MissingExtra
from vitlab.report.style import BLUE as BLUE
from vitlab.report.style import INK as INK
from vitlab.report.style import ORANGE as ORANGE
from vitlab.report.style import QUIET as QUIET

COLUMN, PAGE = 4.4, 7.4
"""Width of a figure in inches: one column of a paper, or both."""
DPI = 200
FAINT = "#d9dde2"
CLASSES = (BLUE, ORANGE, "#009e73", "#cc79a7", "#e69f00", "#56b4e9", QUIET)
"""Okabe and Ito's colours, without those too pale for a point on white."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
"""Markers that distinguish classes without colours too."""
SIMILARITY, SHARE, SIGNED = "viridis", "cividis", "PuOr"
"""Colour maps ordered by lightness, also in grey; the last is white at zero."""
SETTINGS: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.labelsize": 9,
    "axes.edgecolor": QUIET,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "xtick.color": QUIET,
    "ytick.color": QUIET,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "text.color": INK,
    "svg.hashsalt": "vitlab",
}


def check_matplotlib(purpose: str = "drawing figures") -> None:
    """Raise if matplotlib is missing, before anything is computed."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise MissingExtra("plots", purpose) from error


@contextmanager
def styled() -> Iterator[None]:
    """Apply the style to figures made and saved in the block, whatever the user's settings."""
    import matplotlib as mpl

    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(SETTINGS)
        yield


def new_figure(width: float, height: float, *, gap: float = 0.02) -> Any:
    """Empty figure of this size in inches; `gap` is the part of a panel left free between two."""
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(width, height), dpi=DPI, layout="constrained")
    drawn.get_layout_engine().set(wspace=gap, hspace=gap)  # type: ignore[union-attr, call-arg]
    return drawn


def rendered(figure: Any, kind: str) -> bytes:
    """Bytes of the file; the same numbers give the same bytes."""
    file = io.BytesIO()
    nothing = {"png": {"Software": None}, "svg": {"Date": None, "Creator": None}}
    figure.savefig(file, format=kind, metadata=nothing[kind])
    return file.getvalue()


def show_colours(colour_bar: Any, label: str) -> None:
    """Style a colour bar."""
    colour_bar.set_label(label)
    colour_bar.outline.set_visible(False)


def no_frame(axes: Any) -> None:
    """Hide the frame of axes that hold an image."""
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(False)


def as_colours(
    images: Float[np.ndarray, "k C H W"],
) -> Float[np.ndarray, "k H W 3"]:
    """Signed values as colours around grey, each image by its largest; three channels at most."""
    shown = images[:, :3] if images.shape[1] >= 3 else np.repeat(images[:, :1], 3, axis=1)
    largest = np.abs(shown).max(axis=(1, 2, 3), keepdims=True)
    scaled = 0.5 + 0.5 * shown / np.where(largest > 0, largest, 1.0)
    return np.moveaxis(scaled, 1, -1)
