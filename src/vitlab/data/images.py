"""Sets of labelled images: in memory, or files on a disk."""

from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Int, UInt8
from torch import Tensor

from vitlab.errors import DataError


@dataclass(frozen=True, kw_only=True, slots=True)
class ArraySet:
    """Images of one size, all of them in memory."""

    images: UInt8[Tensor, "N C H W"]
    labels: Int[Tensor, " N"]

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
    labels: Int[Tensor, " N"]

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


def _check_labels(images: int, labels: Tensor) -> None:
    if labels.dtype != torch.int64 or labels.shape != (images,):
        raise DataError(
            f"{images} images with labels of shape {tuple(labels.shape)} and {labels.dtype}; "
            f"valid: one int64 label an image"
        )
