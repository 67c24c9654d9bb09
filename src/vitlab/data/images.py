"""Sets of labelled images: in memory, or files on a disk.

The kind of labels tells the task: numbers of classes, whether each class is there, or values.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from vitlab.errors import DataError

Task = Literal["single-label", "multi-label", "regression"]
Labels = Int[Tensor, " N"] | Bool[Tensor, "N classes"] | Float[Tensor, "N values"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ArraySet:
    """Images of one size, all of them in memory."""

    images: UInt8[Tensor, "N C H W"]
    labels: Labels

    def __post_init__(self) -> None:
        _check_labels(len(self.images), self.labels)

    def __len__(self) -> int:
        return len(self.labels)

    def subset(self, index: Int[Tensor, " M"]) -> "ArraySet":
        """The images of these numbers, in this order."""
        return ArraySet(images=self.images[index], labels=self.labels[index])


@dataclass(frozen=True, kw_only=True, slots=True)
class FileSet:
    """Images of any size, read when they are needed."""

    paths: tuple[Path, ...]
    labels: Labels

    def __post_init__(self) -> None:
        _check_labels(len(self.paths), self.labels)

    def __len__(self) -> int:
        return len(self.paths)

    def subset(self, index: Int[Tensor, " M"]) -> "FileSet":
        """The images of these numbers, in this order."""
        return FileSet(
            paths=tuple(self.paths[i] for i in index.tolist()), labels=self.labels[index]
        )


ImageSet = ArraySet | FileSet


def task_of(labels: Labels) -> Task:
    """What is to be told of an image with such labels."""
    if labels.dtype == torch.int64:
        return "single-label"
    return "multi-label" if labels.dtype == torch.bool else "regression"


def _check_labels(images: int, labels: Tensor) -> None:
    axes = {torch.int64: 1, torch.bool: 2, torch.float32: 2}.get(labels.dtype)
    if labels.ndim != axes or len(labels) != images:
        raise DataError(
            f"{images} images with labels of shape {tuple(labels.shape)} and {labels.dtype}; "
            f"valid: one int64 label an image, or a row of bool or float32"
        )
