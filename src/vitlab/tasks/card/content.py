"""What a model card tells, as plain data; what nobody stated is None or empty."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from vitlab.config import to_dict
from vitlab.evaluate.metrics import wilson
from vitlab.models.flops import Cost
from vitlab.models.variants import ModelConfig
from vitlab.preprocessing import Preprocessing

Kind = Literal["bundle", "run", "weights"]


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredFile:
    """One file of the model."""

    name: str
    bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """An accuracy, and how far other images of the same kind could move it."""

    split: str
    accuracy: float
    images: int | None
    """How many were counted; None where it was not stored."""
    interval: tuple[float, float] | None
    """95 % confidence interval; None without the number of images."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Card:
    """Everything that is known about a model on disk."""

    path: Path
    kind: Kind
    format: str
    name: str | None
    """The name of vitlab's for such a model, or of what it is a variant of."""
    model: ModelConfig
    cost: Cost
    files: tuple[StoredFile, ...]
    task: str | None = None
    labels: tuple[str, ...] | None = None
    preprocessing: Preprocessing | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)
    licence: str | None = None
    zero_head: bool = False
    assumed: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """What was trained, on what."""
        name = self.name or ("Vision Transformer" if self.cost.tokens else "convolutional network")
        data = self.provenance.get("data")
        return f"{name} on {Path(str(data)).name}" if data else name

    @property
    def measured(self) -> tuple[Measured, ...]:
        """Every accuracy that was stored, that of the test images first."""
        found = [
            _measured(key.removesuffix("_accuracy"), value, self.metrics)
            for key, value in self.metrics.items()
            if key.endswith("_accuracy")
        ]
        return tuple(sorted(found, key=lambda item: item.split != "test"))

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON-able values."""
        return {
            "path": str(self.path),
            "kind": self.kind,
            "format": self.format,
            "title": self.title,
            "name": self.name,
            "task": self.task,
            "parameters": self.cost.parameters,
            "flops": self.cost.flops,
            "macs": self.cost.macs,
            "tokens": self.cost.tokens,
            "model": to_dict(self.model),
            "preprocessing": None if self.preprocessing is None else to_dict(self.preprocessing),
            "labels": None if self.labels is None else list(self.labels),
            "metrics": dict(self.metrics),
            "measured": [to_dict(item) for item in self.measured],
            "provenance": dict(self.provenance),
            "licence": self.licence,
            "zero_head": self.zero_head,
            "assumed": list(self.assumed),
            "ignored": list(self.ignored),
            "files": [to_dict(file) for file in self.files],
        }


def _measured(split: str, accuracy: float, metrics: Mapping[str, float]) -> Measured:
    images = metrics.get(f"{split}_images")
    if images is None:
        return Measured(split=split, accuracy=accuracy, images=None, interval=None)
    count = int(images)
    interval = wilson(round(accuracy * count), count)
    return Measured(split=split, accuracy=accuracy, images=count, interval=interval)
