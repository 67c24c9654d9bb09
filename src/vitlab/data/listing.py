"""Images from command-line arguments: files, folders, patterns and datasets, with known labels."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch

from vitlab.data.datasets import DataSource, open_data
from vitlab.data.images import ArraySet, FileSet, ImageSet, IndexedSet
from vitlab.data.shards.index import UNLABELLED, Index
from vitlab.errors import DataError, UnknownName, suggest
from vitlab.images.find import ENDINGS, matching, pointed_at
from vitlab.registry import DATASETS

Split = Literal["train", "test", "all"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Listed:
    """Images with a name and a label each; the label is empty if unknown."""

    images: ImageSet
    names: Sequence[str]
    labels: Sequence[str]

    def __len__(self) -> int:
        return len(self.images)


def list_images(
    specs: Sequence[str | os.PathLike[str]], *, split: str | None = None, download: bool = False
) -> list[Listed]:
    """Images of files, folders, patterns (`photos/**/*.jpg`) and datasets, in that order.

    Classes are known for datasets and folders of folders. `split` is a dataset's; None: all.
    """
    from vitlab.data.shards.layout import index_at
    from vitlab.data.shards.store import SUFFIXES as SHARDS

    if split is not None and split not in get_args(Split):
        raise UnknownName("split", split, get_args(Split))
    parts: list[Listed] = []
    files: list[tuple[str, str]] = []
    names, divided = [os.fspath(spec) for spec in specs], False
    for spec in names:
        alone = spec in DATASETS or (os.path.isfile(spec) and not spec.endswith(SHARDS))
        index = None if alone else index_at(spec)
        if index is None and spec not in DATASETS:
            files += _files(spec)
            continue
        parts += _of_files(files)
        files, divided = [], True
        if index is None:
            parts += _dataset(spec, split or "all", download)
        else:
            parts += _indexed(index, split or "all")
    parts += _of_files(files)
    if split is not None and not divided:
        raise DataError(f"split {split!r} is for a dataset by name; valid: a folder of the split")
    if not any(map(len, parts)):
        raise DataError(f"{', '.join(names)}: no images; valid endings: {ENDINGS}")
    return parts


def open_named(name: str) -> ImageSet | None:
    """Image with a listed name such as `sample/test/17`, or None for any other name."""
    dataset, _, rest = name.partition("/")
    split, _, number = rest.partition("/")
    if dataset not in DATASETS or not number.isdecimal():
        return None
    source = open_data(dataset)
    images = source.open_train() if split == "train" else source.open_test and source.open_test()
    if images is None or int(number) >= len(images):
        return None
    return images.subset(torch.tensor([int(number)]))


def _files(spec: str) -> Iterator[tuple[str, str]]:
    """Paths and labels that a command-line argument stands for."""
    path = os.path.expanduser(spec)
    kind = pointed_at(path)
    if kind == "folder":
        return _folder(Path(path))
    if kind == "file":
        return iter([(path, "")])
    if kind == "pattern":
        found = sorted(filter(os.path.isfile, matching(path)))
        if not found:
            raise DataError(f"{spec}: the pattern fits no file")
        return ((name, "") for name in found)
    if os.sep in spec or "/" in spec or "." in spec:
        raise DataError(f"{spec}: no such file or folder")
    raise DataError(f"{spec}: no such file, folder or dataset; {suggest(spec, DATASETS)}")


def _folder(root: Path) -> Iterator[tuple[str, str]]:
    from vitlab.data.shards.layout import TEST, TRAIN
    from vitlab.data.sources.folder import has_splits, image_files

    splits = {TRAIN, *TEST} if has_splits(root) else set()
    for path in sorted(image_files(root)):
        parts = Path(path).relative_to(root).parts
        parts = parts[1:] if parts[0] in splits else parts
        yield path, parts[0] if len(parts) > 1 else ""


def _of_files(files: Sequence[tuple[str, str]]) -> list[Listed]:
    if not files:
        return []
    names, labels = zip(*files, strict=True)
    numbers = torch.zeros(len(names), dtype=torch.int64)
    images = FileSet(paths=tuple(map(Path, names)), labels=numbers)
    return [Listed(images=images, names=names, labels=labels)]


def _indexed(index: Index, split: str) -> Iterator[Listed]:
    """Images of shards or tables, in the order of the files."""
    for name, (start, end) in index.header.splits.items():
        if split == "all" or (split == "train") == (name == "train"):
            numbers = torch.arange(start, end)
            labels = torch.zeros(end - start, dtype=torch.int64)
            images = IndexedSet(index=index, numbers=numbers, labels=labels)
            yield Listed(
                images=images, names=_Names(images), labels=ShardClasses(index, start, end)
            )


class _Names(Sequence[str]):
    """Names of a set in shards, without a list of them."""

    def __init__(self, images: IndexedSet) -> None:
        self._images = images

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return [self[number] for number in range(len(self))[place]]
        return str(self._images.name(range(len(self))[place]))


class ShardClasses(Sequence[str]):
    """Class of each sample from `start` to before `end`; empty where it has none."""

    def __init__(self, index: Index, start: int, end: int) -> None:
        self._index, self._range = index, range(start, end)
        self._known = index.header.task == "single-label"

    def __len__(self) -> int:
        return len(self._range)

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return [self[number] for number in range(len(self))[place]]
        if not self._known:
            return ""
        number = int(self._index.label[self._range[place]])
        return "" if number == UNLABELLED else self._index.header.labels[number]


def _dataset(name: str, split: str, download: bool) -> Iterator[Listed]:
    source = open_data(name, download=download)
    for each in ("train", "test"):
        images = _open(source, each) if split in (each, "all") else None
        if images is not None:
            yield Listed(
                images=images,
                names=_names(images, f"{name}/{each}"),
                labels=_words(source, images),
            )


def _words(source: DataSource, images: ImageSet) -> list[str]:
    """Class of each image; empty for several labels, or values."""
    if source.task != "single-label":
        return [""] * len(images)
    return [source.labels[number] for number in images.labels.tolist()]


def _open(source: DataSource, split: str) -> ImageSet | None:
    if split == "train":
        return source.open_train()
    return None if source.open_test is None else source.open_test()


def _names(images: ImageSet, place: str) -> list[str]:
    if isinstance(images, ArraySet):
        return [f"{place}/{number}" for number in range(len(images))]
    return [str(images.name(number)) for number in range(len(images))]
