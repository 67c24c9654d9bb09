"""What a report tells, as plain data; what is not known is left out of the page."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import UInt8

from vitlab.evaluate.classify import Evaluation
from vitlab.evaluate.multilabel import MultiLabelEvaluation
from vitlab.evaluate.regress import RegressionEvaluation

Judged = Evaluation | MultiLabelEvaluation | RegressionEvaluation


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
    """Its file, or its number in the data set."""
    truth: str
    predicted: str
    probability: float | None = None
    """Of the predicted class."""
    truth_probability: float | None = None
    badge: str | None = None
    """What stands on the picture where it is no probability."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Model:
    """What was trained."""

    name: str
    parameters: int
    flops: int
    """Of one image, forward, 2 per multiply-add."""
    tokens: int | None = None
    details: Mapping[str, str] = field(default_factory=dict)
    """More rows of the table, such as the optimizer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Data:
    """What it was trained on."""

    name: str
    classes: int
    counted: str = "classes"
    """What `classes` is the number of: classes, labels or values."""
    images: Mapping[str, int] = field(default_factory=dict)
    """Number of images by split: train, validation, test."""
    per_class: Mapping[str, str] = field(default_factory=dict)
    """Fewest and most images of a class by split, in words; splits without it: not known."""
    size: str | None = None
    """Of one image, such as `32 × 32 × 3`."""
    augmentation: tuple[str, ...] | None = None
    """None where nothing was trained."""
    details: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Compute:
    """What it cost."""

    flops: float
    """3 × forward × images seen, plus what else was spent."""
    seconds: float
    """Wall time of training, over all interruptions."""
    images: int
    """Images seen, repetitions included."""
    steps: int
    device: str
    details: Mapping[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, float]:
        """What a bundle keeps of it: compute in 10^15 FLOPs, wall time in minutes."""
        return {
            "steps": self.steps,
            "images_seen": self.images,
            "pflops": self.flops / 1e15,
            "minutes": self.seconds / 60,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Drawing:
    """A figure of its own section."""

    title: str
    svg: bytes
    caption: str


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Report:
    """Everything that the page shows."""

    title: str
    evaluation: Judged | None = None
    split: str = "test"
    """Which images the evaluation is about."""
    mistakes: tuple[Mistake, ...] = ()
    """The most confident first."""
    model: Model | None = None
    data: Data | None = None
    compute: Compute | None = None
    broken: Mapping[str, str] | None = None
    """Images that could not be read, with the reason; None where nobody looked."""
    command: str | None = None
    notes: tuple[str, ...] = ()
    """Sentences for the reader, such as which weights were kept."""
    made_at: str | None = None
    metrics: tuple[Point, ...] = ()
    drawings: tuple[Drawing, ...] = ()
    config: Mapping[str, Any] | None = None
