"""Content of a report, as plain data; unknown values are left out of the page."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from jaxtyping import UInt8
from torch import nn

from vitlab.data.augment.config import AugmentConfig
from vitlab.data.datasets import DataSource
from vitlab.data.images import ClassCounts, ImageSet
from vitlab.evaluation.classification import Outcome
from vitlab.models.config import ViTConfig, pair
from vitlab.models.cost import cost, image_shape
from vitlab.models.merging import MergingTransformer
from vitlab.objectives.objective import Metrics, objective_of
from vitlab.report.html import Html, data_url, element
from vitlab.report.language import say


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """One line of `metrics.jsonl`."""

    step: int
    epoch: float
    split: str
    name: str
    value: float


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Mistake:
    """An image that the model got wrong."""

    image: UInt8[np.ndarray, "H W C"]
    name: str
    """Its file, or its index in the data set."""
    truth: str
    predicted: str
    probability: float | None = None
    """Probability of the predicted class."""
    truth_probability: float | None = None
    badge: str | None = None
    """Text on the image instead of a probability."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Model:
    """Model of the run."""

    name: str
    parameters: int
    flops: int
    """FLOPs of one image, forward, 2 per multiply-add."""
    tokens: int | None = None
    details: Mapping[str, str] = field(default_factory=dict)
    """Further rows of the table, such as the optimizer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Data:
    """Data of the run."""

    name: str
    classes: int
    counted: str = "classes"
    """Unit of `classes`: classes, labels or values."""
    images: Mapping[str, int] = field(default_factory=dict)
    """Number of images by split: train, validation, test."""
    per_class: Mapping[str, str] = field(default_factory=dict)
    """Fewest and most images of a class by split, as text; splits without it: not known."""
    size: str | None = None
    """Width, height and channels of one image, such as `32 × 32 × 3`."""
    augmentation: tuple[str, ...] | None = None
    """None if nothing was trained."""
    details: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Compute:
    """Cost of the run."""

    flops: float
    """3 × forward × images seen, plus further costs."""
    seconds: float
    """Wall time of training, over all interruptions."""
    images: int
    """Images seen, repetitions included."""
    steps: int
    device: str
    details: Mapping[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, float]:
        """Values kept in a bundle: compute in 10^15 FLOPs, wall time in minutes."""
        return {
            "steps": self.steps,
            "images_seen": self.images,
            "pflops": self.flops / 1e15,
            "minutes": self.seconds / 60,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Drawing:
    """A figure in its own section."""

    title: str
    svg: bytes
    caption: str


def show(drawing: Drawing) -> Html:
    """Show a figure on white, with its description."""
    caption = say(drawing.caption)
    image = element("img", src=data_url("image/svg+xml", drawing.svg), alt=caption)
    framed = element("div", image, class_="drawing")
    return element("figure", framed, element("figcaption", caption))


Section = tuple[str, tuple[Html | None, ...]]
"""A title and its content."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Report:
    """All content of the page."""

    title: str
    evaluation: Metrics | None = None
    split: str = "test"
    """Split of the evaluated images."""
    mistakes: tuple[Mistake, ...] = ()
    """The most confident first."""
    model: Model | None = None
    data: Data | None = None
    compute: Compute | None = None
    broken: Mapping[str, str] | None = None
    """Images that could not be read, with the reason; None if not checked."""
    command: str | None = None
    notes: tuple[str, ...] = ()
    """Sentences for the reader, such as the choice of weights."""
    made_at: str | None = None
    metrics: tuple[Point, ...] = ()
    drawings: tuple[Drawing, ...] = ()
    config: Mapping[str, Any] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class View:
    """Part of a report that depends on the kind of label."""

    headline: Callable[[Any, str], Html]
    """Main metric, given the evaluation and the split."""
    tiles: Callable[[Any], Iterator[tuple[str, str]]]
    findings: Callable[[Any], Iterator[str]]
    sections: Callable[[Report], Iterator[Section]]
    mistakes: Callable[[Outcome, ImageSet, Sequence[str]], tuple[Mistake, ...]]


# Descriptions of a model, of data and of augmentation, derived from the objects themselves.


def describe_model(name: str, model: nn.Module, details: Mapping[str, str] | None = None) -> Model:
    """Size, cost and shape of a vitlab model."""
    found = cost(model)
    return Model(
        name=name,
        parameters=found.parameters,
        flops=found.flops,
        tokens=found.tokens,
        details={**_shape(model), **(details or {})},
    )


def describe_data(
    source: DataSource,
    images: Mapping[str, int] | Mapping[str, ClassCounts],
    *,
    augment: AugmentConfig | None = None,
    details: Mapping[str, str] | None = None,
) -> Data:
    """Name, classes and size of the data; `images` by split."""
    size = None if source.image_size is None else (*source.image_size[::-1], source.channels)
    return Data(
        name=source.name,
        classes=len(source.labels),
        counted=objective_of(source.task).outputs,
        images={n: c.images if isinstance(c, ClassCounts) else c for n, c in images.items()},
        per_class={
            name: found.per_class
            for name, found in images.items()
            if isinstance(found, ClassCounts) and found.per_class is not None
        },
        size="files of any size" if size is None else " × ".join(map(str, size)),
        augmentation=None if augment is None else augmentations(augment),
        details=details or {},
    )


def augmentations(config: AugmentConfig) -> tuple[str, ...]:
    """Active augmentations, as `name value`."""
    plain = AugmentConfig()
    changed = (field.name for field in fields(config))
    return tuple(
        f"{name.replace('_', ' ')} {_written(getattr(config, name))}"
        for name in changed
        if getattr(config, name) != getattr(plain, name)
    )


def _shape(model: nn.Module) -> dict[str, str]:
    channels, height, width = image_shape(model)
    rows = {"input": f"{width} × {height} × {channels}"}
    config = getattr(model, "config", None)
    if isinstance(config, ViTConfig):
        patch = " × ".join(map(str, reversed(pair(config.patch_size))))
        rows |= {
            "encoder": f"width {config.width}, depth {config.depth}, {config.heads} heads",
            "patch": patch if config.stem == "patch" else f"{patch}, stem {config.stem}",
            "position, pool": f"{config.position}, {config.pool}",
        }
    if isinstance(model, MergingTransformer):
        rows["merged tokens"] = f"{model.merge_tokens} in each block"
    return rows


def _written(value: object) -> str:
    return " to ".join(f"{part:g}" for part in value) if isinstance(value, tuple) else str(value)
