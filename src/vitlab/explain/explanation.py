"""Explanation of a model's prediction for one image: numbers, and an optional figure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vitlab.explain.placement import PIXELS, Placement, to_picture
from vitlab.explain.request import CLASS, Ask, parts
from vitlab.images.preprocessing import View
from vitlab.nn.encoder import Grid
from vitlab.task import Task

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Array = NDArray[np.float32]
FLAT = 1e-5
"""Relative differences of a map's values that count as rounding."""
FLAT_MAPS = "Where no colour is seen, the map is the same for every patch."


@dataclass(frozen=True, kw_only=True, eq=False)
class Explanation:
    """Map of one image, the model's prediction, and the question that the map answers."""

    ask: Ask
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
            return to_picture(values, PIXELS, view)
        rows, columns = (
            axis.coarser(cells / found)
            for axis, cells, found in zip(self.where, self.grid, values.shape, strict=True)
        )
        return to_picture(values, (rows, columns), view)

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
