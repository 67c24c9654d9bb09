"""Sets of labelled images: in memory, or files on a disk."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
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
class Survey:
    """What was found when every file of a set was looked at once; names are paths in `folder`."""

    folder: str
    files: int
    fingerprint: str
    """Of all the names and sizes."""
    duplicates: tuple[tuple[str, ...], ...] = ()
    """Files that show the same picture, group by group."""
    broken: dict[str, str] = field(default_factory=dict)
    """Files that cannot be read, with the reason."""

    @property
    def broken_paths(self) -> Mapping[Path, str]:
        """The same with whole paths."""
        return {Path(self.folder, name): reason for name, reason in self.broken.items()}


@dataclass(frozen=True, kw_only=True, slots=True)
class FileSet:
    """Images of any size, read when they are needed."""

    paths: tuple[Path, ...]
    labels: Int[Tensor, " N"]
    survey: Survey | None = None
    """Of these files and others, once somebody has looked."""

    def __post_init__(self) -> None:
        _check_labels(len(self.paths), self.labels)

    def __len__(self) -> int:
        return len(self.paths)

    def subset(self, index: Int[Tensor, " M"]) -> "FileSet":
        """The images of these numbers, in this order."""
        paths = tuple(self.paths[i] for i in index.tolist())
        return replace(self, paths=paths, labels=self.labels[index])


ImageSet = ArraySet | FileSet


def _check_labels(images: int, labels: Tensor) -> None:
    if labels.dtype != torch.int64 or labels.shape != (images,):
        raise DataError(
            f"{images} images with labels of shape {tuple(labels.shape)} and {labels.dtype}; "
            f"valid: one int64 label an image"
        )
