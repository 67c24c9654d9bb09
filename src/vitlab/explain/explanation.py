"""Explanation of a prediction for one image: maps, the place of their patches, a figure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from vitlab.explain.request import CLASS, ExplainRequest, parts
from vitlab.images.preprocessing import View
from vitlab.models.cnn import ResNet
from vitlab.models.config import ViTConfig, pair
from vitlab.models.vit import VisionTransformer
from vitlab.nn.encoder import Grid
from vitlab.task import Task

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Array = NDArray[np.float32]
FLAT = 1e-5
"""Relative differences of a map's values that count as rounding."""
FLAT_MAPS = "Where no colour is seen, the map is the same for every patch."

# Location of patches in an image: by the stem's stride in model pixels, then by the crop.


@dataclass(frozen=True, slots=True)
class Axis:
    """Centres of the rows or columns of a grid, in model pixels: start + i x step."""

    start: float
    step: float

    def coarser(self, factor: float) -> "Axis":
        """Axis of a grid whose cells are `factor` cells of this one."""
        return Axis(self.start + (factor - 1) / 2 * self.step, factor * self.step)


Placement = tuple[Axis, Axis]
PIXELS: Placement = (Axis(0.5, 1.0), Axis(0.5, 1.0))
"""Axis in which every pixel is a cell."""


def placement(model: nn.Module, size: Grid, grid: Grid) -> Placement:
    """Location of the cells of a model's grid in a model input of `size`."""
    if isinstance(model, VisionTransformer):
        finest = model.config.grid_for(size)
        rows, columns = (
            _stem_axis(model.config, size, finest, axis).coarser(finest[axis] / grid[axis])
            for axis in (0, 1)
        )
        return rows, columns
    if isinstance(model, ResNet):
        stages = len(model.config.layers)
        stride = 2 ** (stages - 1) * (4 if model.config.family == "bit" else 1)
        # Odd windows, padded by half of their side on both: a stride keeps each first pixel.
        return (Axis(0.5, stride), Axis(0.5, stride))
    # Two unpadded 5x5 windows lose two pixels each, the second of them in steps of two.
    return (Axis(7.0, 2.0), Axis(7.0, 2.0))


def _stem_axis(config: ViTConfig, size: Grid, grid: Grid, axis: int) -> Axis:
    if config.stem == "conv":
        return _conv_axis(config)
    step = size[axis] / grid[axis]
    if config.stem == "resnet":
        # Of the two paths through a block one keeps the first pixel of a stride, the other the
        # second: the centre of the cell lies between them. SAME padding is even on both sides.
        step = 4 * 2 ** max(len(config.resnet_layers) - 1, 0) * pair(config.patch_size)[axis]
    return Axis((size[axis] - (grid[axis] - 1) * step) / 2, step)


def _conv_axis(config: ViTConfig) -> Axis:
    """Odd windows, padded by half their side, keep each first pixel; pools before norms do not.

    Those take the centre of as many pixels as their stride.
    """
    apart = config.conv_downsample == "pool" and config.conv_pool_at == "before"
    axis = Axis(0.5, 1.0)
    for stride in config.conv_strides:
        axis = axis.coarser(stride) if apart else Axis(axis.start, axis.step * stride)
    return axis


def to_image(values: NDArray[np.float32], where: Placement, view: View) -> NDArray[np.float32]:
    """Map of cells for every pixel of the image, linear between the cells' centres.

    Zero outside of the model's view.
    """
    seen = (view.seen(0), view.seen(1))
    sampled = sample(values, where, *seen)
    for axis in (0, 1):
        outside = (seen[axis] < 0) | (seen[axis] > view.size[axis])
        sampled[(slice(None),) * axis + (outside,)] = 0.0
    return sampled


def sample(
    values: NDArray[np.float32],
    where: Placement,
    rows: NDArray[np.float64],
    columns: NDArray[np.float64],
) -> NDArray[np.float32]:
    """Map of cells at rows and columns of model pixels, linear between centres."""
    for axis, at in enumerate((rows, columns)):
        last = values.shape[axis] - 1
        place = np.clip((at - where[axis].start) / where[axis].step, 0, last)
        low = np.minimum(place.astype(np.int64), max(last - 1, 0))
        share = (place - low).astype(np.float32)
        share = share[:, None] if axis == 0 else share
        below = values.take(low, axis)
        values = below + share * (values.take(np.minimum(low + 1, last), axis) - below)
    return values


def cell_means(
    values: Float[Tensor, "B H W"], where: Placement, grid: Grid
) -> Float[Tensor, "B h w"]:
    """Mean over the pixels of each cell: those whose centre is nearest to the cell's."""
    size = (values.shape[1], values.shape[2])
    down, across = (_shares(where[axis], size[axis], grid[axis]).to(values) for axis in (0, 1))
    return down @ values @ across.T


def _shares(axis: Axis, side: int, cells: int) -> Float[Tensor, "cells side"]:
    """Weight of each pixel in the mean of a cell."""
    # Ties between two cells always go to the second: cells then have equally many pixels.
    nearest = ((torch.arange(side) + 0.5 - axis.start) / axis.step + 0.5).floor()
    nearest = nearest.clamp(0, cells - 1)
    shares = (nearest[None] == torch.arange(cells)[:, None]).double()
    return shares / shares.sum(dim=1, keepdim=True)


@dataclass(frozen=True, kw_only=True, eq=False)
class Explanation:
    """Map of one image, the model's prediction, and the question that the map answers."""

    ask: ExplainRequest
    map: Array
    """[h, w]: a value for each patch."""
    layers: tuple[Array, ...]
    """With `each`, [h, w] for each block or [A, h, w] for its heads; blocks may differ in h, w."""
    fine: Array | None
    """[H, W]: a value for each pixel of the model input, from methods that provide it."""
    elsewhere: float | None
    """Share of the attention on class token and registers, which the map leaves out."""
    target: str | None
    """Class that the map is about; None: none."""
    top: tuple[tuple[str, float], ...]
    """Most likely classes with their probabilities, or values; empty without a head."""
    task: Task
    path: str | None
    picture: Image.Image
    """The input image, upright."""
    view: View
    """Part of it that the model saw, and its size."""
    wording: str
    grid: Grid
    """The model's finest grid, and the location of its patches in the model input."""
    where: Placement

    @property
    def question(self) -> str:
        """Question that the map answers."""
        return self.wording.replace(CLASS, f"“{self.target}”")

    @property
    def caption(self) -> str:
        """Question, and notes needed to read the map."""
        return caption([self])

    @property
    def pixel_map(self) -> Array:
        """[H, W] of the image: the map for every pixel, zero outside of the model's view."""
        return self.to_pixels(self.map if self.fine is None else self.fine)

    def to_pixels(self, values: Array, size: Grid | None = None) -> Array:
        """One of the maps, at the size of the image (None) or at another of its proportions."""
        view = self.view if size is None else replace(self.view, image=size)
        if self.fine is not None and values.shape == self.fine.shape:
            return to_image(values, PIXELS, view)
        rows, columns = (
            axis.coarser(cells / found)
            for axis, cells, found in zip(self.where, self.grid, values.shape, strict=True)
        )
        return to_image(values, (rows, columns), view)

    def figure(self) -> "Figure":
        """Image, map over it, and the model's prediction; needs matplotlib."""
        from vitlab.explain.figure import draw

        return draw([self])

    def save(self, path: Path | str) -> None:
        """Write the figure as PNG, SVG or PDF, by the name."""
        from vitlab.explain.figure import save

        save(self.figure(), Path(path))

    def to_json(self) -> Mapping[str, Any]:
        """All but the image, as JSON-serialisable values."""
        return {
            "path": self.path,
            "method": self.ask.method,
            "question": self.question,
            "class": self.target,
            "top": [list(told) for told in self.top],
            "layer": self.ask.layer,
            "head": self.ask.head,
            "token": self.ask.token,
            "picture": list(self.view.image),
            "seen": list(self.view.box),
            "grid": list(self.map.shape),
            "map": self.map.tolist(),
            "layers": [values.tolist() for values in self.layers],
            "elsewhere": self.elsewhere,
        }


def caption(found: Sequence[Explanation]) -> str:
    """Caption of maps that answer the same question."""
    first = found[0]
    alone = len({one.target for one in found}) == 1
    asked = first.question if alone else first.wording.replace(CLASS, "the class above it")
    shares = [one.elsewhere for one in found if one.elsewhere is not None]
    least, most = (f"{share:.0%}" for share in (min(shares, default=0), max(shares, default=0)))
    notes = [asked, parts(first.ask)]
    if most != "0%" and first.ask.each is None:
        span = most if least == most else f"{least} to {most}"
        notes.append(f"{span} of it lies on tokens that are no patches.")
    flat = sum(bool(np.ptp(one.map) <= FLAT * np.abs(one.map).max()) for one in found)
    if flat:
        notes.append("It is the same for every patch." if flat == 1 == len(found) else FLAT_MAPS)
    return " ".join(filter(None, notes))
