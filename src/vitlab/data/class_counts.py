"""Number of images per class: of a whole set, and the range over its classes."""

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from vitlab.data.images import Labels, task_of


@dataclass(frozen=True, kw_only=True, slots=True)
class ClassCounts:
    """Number of images in one split, and their distribution over the classes."""

    images: int
    least: int | None
    """Number of images in the smallest class or label; None for values."""
    most: int | None
    each: str
    """`class` or `label`."""
    absent: tuple[str, ...]
    """Classes or labels without an image."""

    @property
    def per_class(self) -> str | None:
        """Range as text, such as `1 to 13 per class`; None for values."""
        if self.least is None:
            return None
        least, most = f"{self.least:,}", f"{self.most:,}"
        return f"{least if least == most else f'{least} to {most}'} per {self.each}"

    @property
    def text(self) -> str:
        """Number of images with the range, as text."""
        return f"{self.images:,}" + ("" if self.per_class is None else f" ({self.per_class})")

    def to_dict(self) -> dict[str, object]:
        """All values, as JSON-serialisable types."""
        ranges = {"least_per_class": self.least, "most_per_class": self.most}
        return {"images": self.images, **ranges, "absent": list(self.absent)}


def count_images(labels: Labels, names: tuple[str, ...]) -> ClassCounts:
    """Count the images of a split with these labels; `names` are those of the classes."""
    task = task_of(labels)
    if task == "regression":
        return ClassCounts(images=len(labels), least=None, most=None, each="", absent=())
    counts = class_counts(labels, len(names)).tolist()
    return ClassCounts(
        images=len(labels),
        least=min(counts),
        most=max(counts),
        each="class" if task == "single-label" else "label",
        absent=tuple(name for name, count in zip(names, counts, strict=True) if not count),
    )


def class_counts(labels: Labels, classes: int = 0) -> Int[Tensor, " classes"]:
    """Number of images of each class or label; at least `classes` numbers."""
    if task_of(labels) == "multi-label":
        return labels.sum(dim=0)
    return torch.bincount(labels, minlength=classes)
