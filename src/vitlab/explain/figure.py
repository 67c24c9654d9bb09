"""Figures of explanations: images, maps over them, predictions, and the question."""

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitlab.errors import FileError, InputError, MissingExtra
from vitlab.explain.explanation import Array, Explanation, caption
from vitlab.explain.limits import LONGEST, MOST
from vitlab.io.files import check_parent, replacing
from vitlab.io.text import literal
from vitlab.objectives.objective import objective_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ENDINGS = (".png", ".svg", ".pdf")
COLOURS = "inferno"
"""Colour map of increasing lightness, readable without colour vision too."""
INK, SOFT, BAR, TRACK, ASKED = "#1f2430", "#667085", "#4c78a8", "#e6e8ec", "#00b4d8"
MANY, TOP = 4096, 0.005
"""Maps with this many values have outliers: this share, the highest, is drawn as one colour."""
FAINT, STRONG = 0.35, 0.9
"""Opacity of the map over the image at its minimum and maximum."""


def check_name(path: Path) -> None:
    """Raise for a path that no figure can be written to, before anything is computed."""
    if path.suffix.lower() not in ENDINGS:
        raise FileError(f"{path}: valid: a name that ends in {', '.join(ENDINGS)}")
    check_parent(path)
    new_figure()


def save(figure: "Figure", path: Path) -> None:
    """Write a figure atomically."""
    with replacing(path) as file:
        figure.savefig(file, format=path.suffix.lower()[1:])


def draw(found: Sequence[Explanation]) -> "Figure":
    """One figure of explanations that answer the same question."""
    each = found[0].ask.each
    if each == "head" and len(found) > 1:
        raise InputError(f"a figure of every head of {len(found)} images; valid: one image")
    if len(found) > MOST:
        raise InputError(f"a figure of {len(found)} images; valid: up to {MOST}")
    if each == "head":
        return _draw_heads(found[0])
    return _draw_layers(found) if each == "layer" else _draw_maps(found)


def _draw_maps(found: Sequence[Explanation]) -> "Figure":
    """One row per image: the image, the map over it, the most likely classes."""
    figure = new_figure()(figsize=(9.0, 2.9 * len(found) + 0.9), dpi=150, layout="constrained")
    axes = figure.subplots(len(found), 3, squeeze=False, width_ratios=(1, 1, 0.85))
    for row, explanation in zip(axes, found, strict=True):
        _show_picture(row[0], explanation)
        _show_map(row[1], explanation, _main(explanation))
        if explanation.target is not None:
            row[1].set_title(_short(f"for “{explanation.target}”"), fontsize=9, color=INK)
        _show_top(row[2], explanation)
    _explain_colours(figure, axes[:, 1], 0.7)
    _write_caption(figure, found, 128)
    return figure


def _draw_layers(found: Sequence[Explanation]) -> "Figure":
    """Image and a map for each block, image after image."""
    columns = 7
    panels = 1 + len(found[0].layers)
    lines = -(-panels // columns)
    size = (1.6 * columns, 1.75 * lines * len(found) + 0.9)
    figure = new_figure()(figsize=size, dpi=150, layout="constrained")
    axes = figure.subplots(lines * len(found), columns, squeeze=False)
    for number, explanation in enumerate(found):
        own = axes[lines * number : lines * (number + 1)].ravel()
        _show_picture(own[0], explanation)
        for layer, values in enumerate(explanation.layers):
            _show_map(own[1 + layer], explanation, values)
            own[1 + layer].set_title(f"block {layer}", fontsize=9, color=INK)
        for empty in own[panels:]:
            empty.set_axis_off()
    _explain_colours(figure, axes, 2.4 / size[0])
    _write_caption(figure, found, int(14 * size[0]))
    return figure


def _draw_heads(explanation: Explanation) -> "Figure":
    """Image, and below it a map for each head of each block, without the image.

    A row for each block, or, with few heads, for each head.
    """
    depth, heads = len(explanation.layers), len(explanation.layers[0])
    height, width = explanation.view.size
    lying = depth >= 2 * heads
    rows, columns = (heads, depth) if lying else (depth, heads)
    size = (max(6.0, 1.05 * columns + 0.6), 1.05 * height / width * rows + 4.0)
    figure = new_figure()(figsize=size, dpi=150, layout="constrained")
    above, below = figure.subfigures(2, 1, height_ratios=(2.6, size[1] - 2.6))
    first = above.subplots(1, 2, width_ratios=(1, 1))
    _show_picture(first[0], explanation)
    _show_top(first[1], explanation)
    axes = below.subplots(rows, columns, squeeze=False)
    for layer, maps in enumerate(explanation.layers):
        for head, values in enumerate(maps):
            panel = axes[head, layer] if lying else axes[layer, head]
            panel.imshow(values, cmap=COLOURS, aspect="auto")
            panel.set_box_aspect(height / width)
            panel.set_xticks([])
            panel.set_yticks([])
    names = [f"block {layer}" for layer in range(depth)], [f"head {head}" for head in range(heads)]
    for panel, name in zip(axes[0], names[0 if lying else 1], strict=True):
        panel.set_title(name, fontsize=9, color=INK)
    for panel, name in zip(axes[:, 0], names[1 if lying else 0], strict=True):
        panel.set_ylabel(name, fontsize=9, color=INK)
    _explain_colours(below, axes, 2.4 / size[0])
    _write_caption(figure, [explanation], int(14 * size[0]))
    return figure


def _show_picture(axes: Any, explanation: Explanation) -> None:
    picture = _small(explanation.picture)
    axes.imshow(picture, cmap="gray", vmin=0, vmax=255)
    axes.set_axis_off()
    if explanation.path is not None:
        place = Path(explanation.path)  # `sample/test/17` is not a file, and needs its full name
        name = place.name if place.suffix else explanation.path
        axes.set_title(_short(name), fontsize=9, color=SOFT)
    _frame(axes, explanation, picture)
    _mark_token(axes, explanation, picture)


def _mark_token(axes: Any, explanation: Explanation, picture: NDArray[np.uint8]) -> None:
    """Draw a square around the query patch."""
    if explanation.ask.token is None:
        return
    from matplotlib.patches import Rectangle

    view, scale = explanation.view, picture.shape[0] / explanation.view.image[0]
    corner, extent = [], []
    for axis, cell in enumerate(explanation.ask.token):
        where, ratio = explanation.where[axis], view.image[axis] / view.resized[axis] * scale
        first = where.start + (cell - 0.5) * where.step + view.corner[axis]
        corner.append(first * ratio - 0.5)
        extent.append(where.step * ratio)
    square = Rectangle((corner[1], corner[0]), extent[1], extent[0], fill=False)
    square.set(edgecolor=ASKED, linewidth=1.8)
    axes.add_patch(square)


def _frame(axes: Any, explanation: Explanation, picture: NDArray[np.uint8]) -> None:
    """Draw lines around the model's view, where it is not the whole image."""
    top, left, bottom, right = explanation.view.box
    height, width = explanation.view.image
    if bottom - top > 0.99 * height and right - left > 0.99 * width:
        return
    scale = picture.shape[0] / height
    lines = ([left, right, right, left, left], [top, top, bottom, bottom, top])
    across, down = (np.array(line) * scale - 0.5 for line in lines)
    axes.plot(across, down, color="white", linewidth=1.6)
    axes.plot(across, down, color=INK, linewidth=1.6, linestyle=(0, (4, 4)))


def _show_map(axes: Any, explanation: Explanation, values: Array) -> None:
    """Draw the map over the grey image: higher values cover more."""
    grey = _small(explanation.picture.convert("L"))
    size = (grey.shape[0], grey.shape[1])
    heat = scaled(explanation.to_pixels(values, size), values)
    seen = explanation.to_pixels(np.ones_like(values), size) > 0
    axes.imshow(grey, cmap="gray", vmin=0, vmax=255)
    cover = np.where(seen, FAINT + (STRONG - FAINT) * heat, 0.0)
    axes.imshow(heat, cmap=COLOURS, vmin=0, vmax=1, alpha=cover)
    axes.set_axis_off()
    _frame(axes, explanation, grey)
    _mark_token(axes, explanation, grey)


def scaled(heat: Array, values: Array) -> Array:
    """Map scaled to [0, 1], a flat one to 0; with many pixels, the highest are clipped."""
    top = 1 - TOP if values.size > MANY else 1
    low, high = float(values.min()), float(np.quantile(values, top))
    return np.clip((heat - low) / (high - low), 0.0, 1.0) if high > low else np.zeros_like(heat)


def _show_top(axes: Any, explanation: Explanation) -> None:
    """Draw the most likely classes as bars, the first on top; values as text."""
    axes.set_axis_off()
    shown = explanation.top[:5]
    if not shown:
        said = (
            "no head: no classes"
            if objective_of(explanation.task).prediction == "best"
            else "no label"
        )
        axes.text(0.0, 0.5, said, color=SOFT, fontsize=9)
        return
    axes.set_xlim(0, 1)
    axes.set_ylim(5.2, -0.6)
    for place, (label, number) in enumerate(shown):
        has_values = objective_of(explanation.task).has_values
        if not has_values:
            axes.barh(place + 0.28, 1.0, height=0.16, color=TRACK)
            axes.barh(place + 0.28, number, height=0.16, color=BAR)
        told = f"{number:.4g}" if has_values else f"{number:.1%}"
        weight = "bold" if label == explanation.target else "normal"
        axes.text(0.0, place, _short(label, 26), fontsize=9, color=INK, weight=weight, va="center")
        axes.text(1.0, place, told, fontsize=9, color=INK, weight=weight, va="center", ha="right")


def _explain_colours(figure: Any, axes: Any, part: float) -> None:
    """Draw a colour bar, as long as this part of the panels."""
    from matplotlib.cm import ScalarMappable

    bar = figure.colorbar(
        ScalarMappable(cmap=COLOURS),
        ax=axes,
        location="bottom",
        shrink=part,
        aspect=28,
        pad=0.02,
        panchor=False,  # else panels with a bar move up beside those without
    )
    bar.set_ticks([0, 1], labels=["least of the map", "most"], fontsize=8, color=SOFT)
    bar.outline.set_visible(False)


def _write_caption(figure: Any, found: Sequence[Explanation], letters: int) -> None:
    figure.get_layout_engine().set(w_pad=0.08, h_pad=0.08)
    figure.supxlabel(
        literal(textwrap.fill(caption(found), letters)), x=0.02, ha="left", fontsize=9, color=INK
    )


def _main(explanation: Explanation) -> Array:
    return explanation.map if explanation.fine is None else explanation.fine


def _small(picture: Image.Image) -> NDArray[np.uint8]:
    """Image reduced to the size of the figure; tiny ones are unchanged."""
    factor = min(1.0, LONGEST / max(picture.size))
    size = (max(1, round(picture.width * factor)), max(1, round(picture.height * factor)))
    return np.asarray(picture.resize(size, Image.Resampling.LANCZOS))


def _short(text: str, letters: int = 40) -> str:
    return literal(text if len(text) <= letters else f"{text[: letters - 1]}…")


def new_figure() -> Any:
    """Create matplotlib's `Figure` without a window."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtra("plots", "a figure") from error
    return Figure
