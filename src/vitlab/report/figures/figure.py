"""One figure: its numbers, their description, and their origin."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from vitlab.errors import Unsupported
from vitlab.explain.statistics import Gathered
from vitlab.images.preprocessing import Preprocessing
from vitlab.models.vit import VisionTransformer

Watch = Callable[[str, int, int], None]


@dataclass(frozen=True, kw_only=True, eq=False)
class Figure:
    """Figure to draw, with its numbers as JSON."""

    caption: str
    """Text below the figure: definitions, number of images, omissions."""
    data: dict[str, Any]
    pictures: Sequence[UInt8[np.ndarray, "H W C"]] = ()
    """Images in the figure that are not part of its numbers."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Seen:
    """A model, and its statistics over images."""

    model: nn.Module
    name: str
    gathered: Gathered
    preprocessing: Preprocessing | None
    """None if no image was needed."""
    names: Sequence[str] = field(default=())
    labels: Sequence[str] = field(default=())
    """Label of every image; empty if unknown."""
    watch: Watch | None = None

    @property
    def images(self) -> int:
        """Number of images that were used."""
        return len(self.names)


def transformer(model: nn.Module, figure: str, what: str) -> VisionTransformer:
    """The model, if it is a Vision Transformer; raises that anything else lacks `what`."""
    if not isinstance(model, VisionTransformer):
        raise Unsupported(f"{figure}: a {type(model).__name__} has no {what}")
    return model


def with_blocks(model: nn.Module, figure: str, what: str) -> VisionTransformer:
    """Same as `transformer`, with an encoder: a control may have none."""
    found = transformer(model, figure, what)
    if not found.config.depth:
        raise Unsupported(f"{figure}: the model has no encoder blocks")
    return found


def plain(values: Float[Tensor, "..."]) -> Any:
    """Numbers for JSON, seven digits each; None for missing ones."""
    if values.ndim:
        return [plain(part) for part in values] if values.ndim > 1 else _row(values)
    return _row(values[None])[0]


def _row(values: Float[Tensor, " n"]) -> list[float | None]:
    return [None if value != value else float(f"{value:.7g}") for value in values.tolist()]


def array(values: Any) -> Float[np.ndarray, "..."]:
    """Output of `plain` as an array, with NaN for missing numbers."""
    return np.array(values, dtype=np.float64)
