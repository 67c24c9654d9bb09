"""Sets of labelled images, in memory or as files on a disk, and the number of images per class.

The kind of labels defines the task: class indices, presence of each class, or values.
"""

import logging
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple, overload

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, UInt8
from numpy.typing import NDArray
from torch import Tensor

from vitlab.data.order import Shards
from vitlab.data.shards.index import UNAVAILABLE, Index
from vitlab.errors import DataError
from vitlab.images.open import StoredImage
from vitlab.task import Task

Labels = Int[Tensor, " N"] | Bool[Tensor, "N classes"] | Float[Tensor, "N values"]
WINDOW = 16
"""Shards whose images are shuffled together, unless another number is given."""
CACHED = 2**17
"""Numbers that stay in a core's cache from one operation to the next."""

log = logging.getLogger(__name__)


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


class Fault(NamedTuple):
    """Images that cannot be read."""

    path: Path
    """An image, or a shard."""
    reason: str
    images: int
    """Number of images of the set that it concerns."""


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

    def name(self, number: int) -> Path:
        """Path of an image, as it was given."""
        return self.paths[number]

    def source(self, number: int) -> Path:
        """Image that is read when it is opened."""
        return self.paths[number]

    def task(self, number: int) -> str:
        """Source of an image for a process that works in another folder."""
        return os.path.abspath(self.paths[number])

    def reading_order(self) -> Int[Tensor, " N"]:
        """Images in the order in which they are best read one after the other."""
        return torch.arange(len(self))

    def shards(self, window: int) -> None:
        """None: files are shuffled as a whole."""

    def fault(self, number: int, reason: str) -> "Fault":
        """Unreadable file with the reason."""
        return Fault(self.paths[number], reason, 1)

    def subset(self, index: Int[Tensor, " M"]) -> "FileSet":
        """Images at these indices, in this order."""
        paths = tuple(self.paths[i] for i in index.tolist())
        return replace(self, paths=paths, labels=self.labels[index])


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexedSet:
    """Images in shards or tables, read by number when they are needed."""

    index: Index
    numbers: Int[Tensor, " N"]
    """Number of each image in the index."""
    labels: Labels
    survey: Survey | None = None
    """Survey of these images and others, once available."""

    def __post_init__(self) -> None:
        _check_labels(len(self.numbers), self.labels)

    def __len__(self) -> int:
        return len(self.numbers)

    def subset(self, index: Int[Tensor, " M"]) -> "IndexedSet":
        """Images at these indices, in this order."""
        return replace(self, numbers=self.numbers[index], labels=self.labels[index])

    def name(self, number: int) -> Path:
        """Name of an image: its shard, and its name in the shard."""
        return Path(self.folder, self.index.name(int(self.numbers[number])))

    @property
    def folder(self) -> str:
        """Folder below which names begin; empty for a store."""
        return "" if self.index.store.remote else self.index.store.root

    def source(self, number: int) -> StoredImage:
        """Image that is read when it is opened."""
        return self.index.image(int(self.numbers[number]))

    @property
    def sources(self) -> Sequence[StoredImage]:
        """All images, each made when it is used."""
        return _Sources(self)

    def task(self, number: int) -> int:
        """Source of an image for another process that has the index."""
        return int(self.numbers[number])

    def fault(self, number: int, reason: str) -> "Fault":
        """Unreadable image, or the whole shard if that is unavailable."""
        block = self.index.block(int(self.numbers[number]))
        opening = f"{self.index.block_name(block)}{UNAVAILABLE}"
        if not reason.startswith(opening):
            return Fault(self.name(number), reason, 1)
        start, end = self.index.bounds(block)
        images = int(((self.numbers >= start) & (self.numbers < end)).sum())
        shard = Path(self.folder, self.index.block_name(block))
        return Fault(shard, f"{reason.removeprefix(opening)} ({images:,} images)", images)

    def reading_order(self) -> Int[Tensor, " N"]:
        """Images in their order, or shard by shard if there are more than a few."""
        few = len(self.index.block_end) <= WINDOW
        return torch.arange(len(self)) if few else self.numbers.argsort()

    def shards(self, window: int) -> Shards | None:
        """Shards for the order of the images; None if a window holds all of them."""
        bounds = torch.from_numpy(self.index.block_end)
        if len(bounds) <= window:
            return None
        ordered = bool((self.numbers[1:] > self.numbers[:-1]).all())
        members = None if ordered else self.numbers.argsort()
        numbers = self.numbers if members is None else self.numbers[members]
        ends = torch.searchsorted(numbers, bounds)
        return Shards(ends=ends, members=members, window=window)


class _Sources(Sequence[StoredImage]):
    """Images of a set, without a list of them."""

    def __init__(self, images: IndexedSet) -> None:
        self._images = images

    def __len__(self) -> int:
        return len(self._images)

    @overload
    def __getitem__(self, place: int) -> StoredImage: ...

    @overload
    def __getitem__(self, place: slice) -> list[StoredImage]: ...

    def __getitem__(self, place: int | slice) -> StoredImage | list[StoredImage]:
        if isinstance(place, slice):
            return [self._images.source(number) for number in range(len(self))[place]]
        return self._images.source(range(len(self))[place])


StoredSet = FileSet | IndexedSet
ImageSet = ArraySet | StoredSet


def index_of(images: StoredSet) -> Index | None:
    """Index of the images of a set; None for files."""
    return images.index if isinstance(images, IndexedSet) else None


def joined(first: ImageSet, second: ImageSet) -> ImageSet:
    """Concatenation of two sets of a kind, those in shards of one index."""
    labels = torch.cat([first.labels, second.labels])
    match first, second:
        case ArraySet(), ArraySet():
            return ArraySet(images=torch.cat([first.images, second.images]), labels=labels)
        case FileSet(), FileSet():
            return replace(first, paths=first.paths + second.paths, labels=labels)
        case IndexedSet(), IndexedSet() if first.index is second.index:
            numbers = torch.cat([first.numbers, second.numbers])
            return replace(first, numbers=numbers, labels=labels)
    raise TypeError(f"{type(first).__name__} and {type(second).__name__}")


def one_of(broken: Mapping[Path, str]) -> str:
    """Text about the first unreadable file with the most frequent reason."""
    (reason, count), *others = Counter(broken.values()).most_common()
    path = next(path for path, found in broken.items() if found == reason)
    return f"{f'{count:,} as' if others and count > 1 else 'one is'} {path}: {reason}"


def warn_unreadable(broken: Mapping[Path, str], of: str) -> None:
    """Log the number of unreadable files and the first of them."""
    log.warning("%d of %s cannot be read and take no part; %s", len(broken), of, one_of(broken))


def survey_of(images: ImageSet) -> Survey | None:
    """Survey of the files of a set; None if it has no files or was not surveyed."""
    return None if isinstance(images, ArraySet) else images.survey


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


# Images as fixed records of label bytes and pixel bytes, channel after channel: CIFAR's layout.


def read_records(
    parts: Sequence[tuple[str, NDArray[np.uint8]]],
    *,
    shape: tuple[int, int, int],
    classes: int,
    label_bytes: int = 1,
) -> ArraySet:
    """Images from several files' bytes; the last label byte is used."""
    record = label_bytes + shape[0] * shape[1] * shape[2]
    for name, part in parts:
        if not part.size or part.size % record:
            raise DataError(
                f"{name} has {part.size} bytes, no whole number of {record}-byte records"
            )
    rows = [part.reshape(-1, record) for _, part in parts]
    total = sum(map(len, rows))
    images = torch.empty((total, *shape), dtype=torch.uint8)
    labels = torch.empty(total, dtype=torch.int64)
    start = 0
    for (name, _), part in zip(parts, rows, strict=True):
        end = start + len(part)
        images[start:end].numpy()[:] = part[:, label_bytes:].reshape(-1, *shape)
        labels[start:end].numpy()[:] = part[:, label_bytes - 1]
        if int(part[:, label_bytes - 1].max()) >= classes:
            raise DataError(f"{name} has a label beyond the {classes} classes")
        start = end
    return ArraySet(images=images, labels=labels)
