"""What a model looks at in one image: numbers, and a figure for those who want one."""

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
"""Differences of a map's numbers, as a part of the largest, that are but rounding."""
FLAT_MAPS = "Where no colour is seen, the map is the same for every patch."


@dataclass(frozen=True, kw_only=True, eq=False)
class Explanation:
    """The map of one image, what the model said of it, and the question that the map answers."""

    ask: Ask
    map: Array
    """[h, w]: a number for each patch."""
    layers: tuple[Array, ...]
    """With `each`, [h, w] for each block or [A, h, w] for its heads; blocks may differ in h, w."""
    fine: Array | None
    """[H, W]: a number for each pixel that the model reads, from methods that know it."""
    elsewhere: float | None
    """Share of the attention that lies on class token and registers, which the map leaves out."""
    target: str | None
    """The class that the map is of; None: it is of none."""
    top: tuple[tuple[str, float], ...]
    """The likeliest classes with their probabilities, or values; nothing without a head."""
    task: Task
    path: str | None
    picture: Image.Image
    """As it was given, upright."""
    view: View
    """Which part of it the model saw, at which size."""
    wording: str
    grid: Grid
    """The model's finest grid, and where its patches lie in the pixels that it reads."""
    where: Placement

    @property
    def question(self) -> str:
        """What the map answers."""
        return self.wording.replace(CLASS, f"“{self.target}”")

    @property
    def caption(self) -> str:
        """The question, and what must be known to read the map."""
        return caption([self])

    @property
    def pixel_map(self) -> Array:
        """[H, W] of the picture: the map for every pixel, zero where the model sees none."""
        return self.to_pixels(self.map if self.fine is None else self.fine)

    def to_pixels(self, values: Array, size: Grid | None = None) -> Array:
        """One of the maps, at the size of the picture (None) or at another of its proportions."""
        view = self.view if size is None else replace(self.view, image=size)
        if self.fine is not None and values.shape == self.fine.shape:
            return to_picture(values, PIXELS, view)
        rows, columns = (
            axis.coarser(cells / found)
            for axis, cells, found in zip(self.where, self.grid, values.shape, strict=True)
        )
        return to_picture(values, (rows, columns), view)

    def figure(self) -> "Figure":
        """The picture, the map over it, and what the model said; needs matplotlib."""
        from vitlab.explain.figure import draw

        return draw([self])

    def save(self, path: Path | str) -> None:
        """Write the figure: PNG, SVG or PDF, by the name."""
        from vitlab.explain.figure import save

        save(self.figure(), Path(path))

    def to_json(self) -> Mapping[str, Any]:
        """All but the picture, as JSON-able values."""
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
    """What stands under maps that answer the same question."""
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
