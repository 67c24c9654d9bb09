"""Pictures of what a model tells of hidden patches, before it has learnt and after."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from vitlab.models.pretraining.objective import Objective
from vitlab.preprocessing import Preprocessing
from vitlab.tasks.figures.style import BLUE, FAINT, ORANGE, PAGE, new_figure
from vitlab.tasks.pretraining.watch import hide_alike
from vitlab.tasks.report.content import Point
from vitlab.tasks.report.curves import curves_of

GAP = 0.12
"""Of a picture's side, left free between two."""
LABELS = 1.3
"""Inches beside the pictures that their names take."""
ROWS = {
    "mae": {
        "original": "original",
        "seen": "visible patches",
        "before": "drawn before learning",
        "after": "drawn after learning",
    },
    "masked-patch": {
        "original": "original",
        "seen": "corrupted",
        "before": "told before learning",
        "after": "told after learning",
        "true": "true mean colours",
    },
}
CAPTIONS = {
    "mae": (
        "Grey patches were left out. A drawn patch is shown in the mean and contrast of the true "
        "one, which the model is not asked for."
    ),
    "masked-patch": (
        "Grey patches have the mask's embedding, others that of another patch, and some are kept. "
        "In the rows below, every corrupted patch has the mean colour that the model tells, or "
        "the true one, each channel in eight steps."
    ),
}


@torch.inference_mode()
def picture_rows(
    images: Float[Tensor, "B C H W"], fresh: Objective, learnt: Objective
) -> dict[str, Float[Tensor, "B C H W"]]:
    """Rows of pictures by name; the same patches are hidden from both models."""
    shown = []
    for model in (fresh, learnt):
        hide_alike()
        shown.append(model.eval().show(images))
    before, after = shown
    rest = {name: rows for name, rows in after.items() if name != "told"}
    return {"original": images, **rest, "before": before["told"], "after": after["told"]}


def as_pixels(
    images: Float[Tensor, "B C H W"], preprocessing: Preprocessing
) -> Float[np.ndarray, "B H W 3"]:
    """Values from 0 to 1 in three channels: of others the first, or the first three."""
    mean, std = (
        torch.tensor(values, device=images.device)[:, None, None]
        for values in (preprocessing.mean, preprocessing.std)
    )
    pixels = (images * std + mean).clamp(0, 1)
    colours = pixels[:, :3] if pixels.shape[1] >= 3 else pixels[:, :1].expand(-1, 3, -1, -1)
    return colours.permute(0, 2, 3, 1).float().cpu().numpy()


def draw_rows(rows: Mapping[str, Float[np.ndarray, "B H W 3"]], titles: Mapping[str, str]) -> Any:
    """One line of pictures for each name that has a title."""
    names = [name for name in titles if name in rows]
    count, height, width, _ = rows[names[0]].shape
    gap = max(1, round(GAP * min(height, width)))
    sheet = np.ones((len(names) * (height + gap) - gap, count * (width + gap) - gap, 3))
    for line, name in enumerate(names):
        for column, picture in enumerate(rows[name]):
            top, left = line * (height + gap), column * (width + gap)
            sheet[top : top + height, left : left + width] = picture
    figure = new_figure(PAGE, 0.1 + (PAGE - LABELS) * sheet.shape[0] / sheet.shape[1])
    axes = figure.subplots()
    axes.imshow(sheet, interpolation="nearest")
    axes.set_anchor("E")  # what is left of the width is for the names
    axes.set_xticks([])
    places = [line * (height + gap) + (height - 1) / 2 for line in range(len(names))]
    axes.set_yticks(places, [titles[name].replace(" ", "\n", 1) for name in names])
    axes.tick_params(left=False)
    axes.spines[:].set_visible(False)
    return figure


def draw_loss(points: Sequence[Point], unit: str) -> Any:
    """The loss over the steps, of batches and of held-out images."""
    figure = new_figure(0.6 * PAGE, 2.8)
    axes = figure.subplots()
    for curve in curves_of(points, "loss"):
        held_out = curve.split == "validation"
        colour = ORANGE if held_out else BLUE
        if curve.noisy:
            axes.fill_between(
                curve.steps, curve.lows, curve.highs, color=colour, alpha=0.16, linewidth=0
            )
        axes.plot(
            curve.steps,
            curve.values,
            "o-" if held_out else "-",
            color=colour,
            linewidth=1.6,
            markersize=4,
            label="held-out images" if held_out else "training",
        )
    axes.set_xlabel("step")
    axes.set_ylabel(f"loss: {unit}")
    axes.grid(axis="y", color=FAINT, linewidth=0.7)
    if axes.lines:
        axes.legend()
    return figure
