"""Sets of labelled images: in memory, or files on a disk.

The kind of labels defines the task: class indices, presence of each class, or values.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from vitlab.errors import DataError
from vitlab.task import Task

Labels = Int[Tensor, " N"] | Bool[Tensor, "N classes"] | Float[Tensor, "N values"]
CACHED = 2**17
"""Numbers that stay in a core's cache from one operation to the next."""


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
        """Images at these indices, in this order."""
        return ArraySet(images=self.images[index], labels=self.labels[index])


@dataclass(frozen=True, kw_only=True, slots=True)
class Survey:
    """Result of reading every file of a set once; names are paths in `folder`."""

    folder: str
    files: int
    fingerprint: str
    """Hash of all names and sizes."""
    order: str = ""
    """Hash of the names in their order and their labels, by which images are held out; empty: not
    stored, as in older surveys.
    """
    duplicates: tuple[tuple[str, ...], ...] = ()
    """Files that show the same image, group by group."""
    broken: dict[str, str] = field(default_factory=dict)
    """Unreadable files, with the reason."""

    @property
    def broken_paths(self) -> Mapping[Path, str]:
        """Unreadable files by full path."""
        return {Path(self.folder, name): reason for name, reason in self.broken.items()}


@dataclass(frozen=True, kw_only=True, slots=True)
class FileSet:
    """Images of any size, read when they are needed."""

    paths: tuple[Path, ...]
    labels: Labels
    survey: Survey | None = None
    """Survey of these files and others, once available."""

    def __post_init__(self) -> None:
        _check_labels(len(self.paths), self.labels)

    def __len__(self) -> int:
        return len(self.paths)

    def subset(self, index: Int[Tensor, " M"]) -> "FileSet":
        """Images at these indices, in this order."""
        paths = tuple(self.paths[i] for i in index.tolist())
        return replace(self, paths=paths, labels=self.labels[index])


ImageSet = ArraySet | FileSet


def joined(first: ImageSet, second: ImageSet) -> ImageSet:
    """Concatenation of two sets of a kind."""
    labels = torch.cat([first.labels, second.labels])
    if isinstance(first, ArraySet) and isinstance(second, ArraySet):
        return ArraySet(images=torch.cat([first.images, second.images]), labels=labels)
    assert isinstance(first, FileSet)
    assert isinstance(second, FileSet)
    return replace(first, paths=first.paths + second.paths, labels=labels)


def one_of(broken: Mapping[Path, str]) -> str:
    """Text about the first of some unreadable files."""
    path, reason = next(iter(broken.items()))
    return f"one is {path}: {reason}"


def task_of(labels: Labels) -> Task:
    """Task for labels of this kind."""
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


def normalise(
    images: UInt8[Tensor, "B C H W"], mean: tuple[float, ...], std: tuple[float, ...]
) -> Float[Tensor, "B C H W"]:
    """Values of 0 to 1 minus the mean, over the deviation: as `Preprocessing`, bit for bit."""
    if images.shape[1] != len(mean):
        raise DataError(f"images have {images.shape[1]} channels, mean {mean} has {len(mean)}")
    centre, scale = (
        torch.tensor(values, device=images.device)[:, None, None] for values in (mean, std)
    )
    if not images.is_cpu:
        return images.float().div_(255).sub_(centre).div_(scale)
    # NumPy asks for huge pages: large batches cost half, if the allocator returns its memory.
    result = torch.from_numpy(np.empty(images.shape, np.float32))
    piece = max(1, CACHED // images[0].numel())
    for part, pixels in zip(result.split(piece), images.split(piece), strict=True):
        part.copy_(pixels).div_(255).sub_(centre).div_(scale)
    return result
