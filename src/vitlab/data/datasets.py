"""Data by name or path: the input of every training, evaluation and study."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset as TorchDataset

from vitlab.data.images import (
    ClassCounts,
    ImageSet,
    StoredSet,
    class_counts,
    count_images,
    joined,
)
from vitlab.data.shards.store import is_address
from vitlab.data.split import distinct_per_class, survey_files
from vitlab.errors import DataError, UnknownName
from vitlab.io.download import SILENT, Progress
from vitlab.io.files import check_file, homes
from vitlab.models.variants import built_in
from vitlab.registry import DATASETS
from vitlab.task import Task

NAMED = 5
"""Maximum number of classes named in a message; beyond, their number is printed."""


Data = str | os.PathLike[str] | TorchDataset[Any] | Sequence[Any] | Mapping[str, Any]
"""A name, a path, or images in memory: see `vitlab.data.sources.memory`."""
WEIGHT_SUFFIXES = frozenset({".safetensors", ".pth", ".pt", ".npz", ".bin", ".onnx", ".pt2"})
HUGGING_FACE = "hf:"
"""Prefix of a dataset of the library `datasets`: a folder, or a name on the hub."""
MEMORY = "memory:"
"""Prefix of the name of images in memory; a digest of them follows."""


SurveyFiles = Callable[[StoredSet], StoredSet]
"""`survey_files` with a known survey, a progress callback, or without."""


@dataclass(frozen=True, kw_only=True)
class DataSource:
    """Labelled images, opened split by split: training does not open the test split."""

    name: str
    labels: tuple[str, ...]
    """Class of each label index; for values, the name of each."""
    channels: int
    image_size: tuple[int, int] | None
    """Height and width, or None if each file has its own."""
    open_train: Callable[[], ImageSet]
    open_test: Callable[[], ImageSet] | None
    mean: tuple[float, ...]
    """Per channel, of the training images' values in [0, 1]."""
    std: tuple[float, ...]
    task: Task = "single-label"
    white: float | None = None
    """Value mapped to the brightest of 8 bits, for deeper files; None: the largest of 16 bits."""
    tested: int | None = None
    """Number of test images, where it is known without opening them."""
    divided: bool = False
    """True if the test images were split off from all images here."""
    unjudged: str | None = None
    """Classes without test images, as text; None: all have some."""
    notes: tuple[str, ...] = ()
    """Decisions made from the data, for the user."""
    survey: SurveyFiles = survey_files
    """Survey of files that were opened without one."""

    @property
    def all_notes(self) -> tuple[str, ...]:
        """Notes, and where the test images come from if they were split off here."""
        taken = f"A fifth of {self.name} is kept for testing, since it has no test images apart"
        return (*self.notes, taken) if self.divided else self.notes


def without_images(where: object, labels: Sequence[str]) -> str | None:
    """Note that a test split has no images of these classes; None if `labels` is empty."""
    if not labels:
        return None
    more = f" and {len(labels) - NAMED:,} more" if len(labels) > NAMED else ""
    return f"{where} has no images of {', '.join(labels[:NAMED])}{more}"


def check_judged(source: DataSource) -> None:
    """Raise if classes of the training images have no test images."""
    if source.unjudged is not None:
        raise DataError(
            f"{source.unjudged}: their accuracy could not be measured; "
            "valid: the same classes in both, or --set judge_all=false"
        )


def check_split(source: DataSource, parts: Mapping[str, ImageSet], *, otherwise: str = "") -> None:
    """Raise if a class is missing in a part of a split made by vitlab; `parts` by their purpose."""
    if source.task != "single-label":
        return
    counts = torch.stack([class_counts(part.labels, len(source.labels)) for part in parts.values()])
    small = ((counts == 0).any(dim=0) & (counts > 0).any(dim=0)).nonzero()[:, 0].tolist()
    if not small:
        return
    have = distinct_per_class(reduce(joined, parts.values()), len(source.labels))
    listed = ", ".join(f"{have[i]} of {source.labels[i]}" for i in small[:NAMED])
    more = f" and {len(small) - NAMED:,} more classes" if len(small) > NAMED else ""
    purposes = ", ".join(f"1 {purpose}" for purpose in parts)
    raise DataError(
        f"{source.name} has too few different images for every class to be in each part of the "
        f"split: {listed}{more}; valid: at least {len(parts)} of each class ({purposes}){otherwise}"
    )


def split_counts(
    source: DataSource, train: ImageSet, validation: ImageSet | None
) -> dict[str, ClassCounts]:
    """Number of images of each class, by the name of the split."""
    parts = {"train": train} if validation is None else {"train": train, "validation": validation}
    return {name: count_images(part.labels, source.labels) for name, part in parts.items()}


def absent_classes(source: DataSource, counts: Mapping[str, ClassCounts]) -> tuple[str, ...]:
    """Sentences naming the classes or labels without an image in a split; `counts` by split."""
    found = (without_images(f"{name} of {source.name}", c.absent) for name, c in counts.items())
    return tuple(f"{sentence}: not evaluated" for sentence in found if sentence)


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredFile:
    """One file of a dataset, as stored in a data home."""

    name: str
    size: int
    checksum: str | None
    """None if only its archive has a known checksum."""


@dataclass(frozen=True, kw_only=True)
class Mirror:
    """One source of a dataset."""

    name: str
    deliver: Callable[[Path, Path, Progress], None]
    """Fill the second folder with the dataset's files; the first keeps partial downloads."""


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """A named dataset: its description, its possible locations, its sources."""

    name: str
    title: str
    licence: str
    classes: int
    images: tuple[int, int]
    """Number of training and of test images."""
    open: Callable[[Path], DataSource]
    """Open the data in a folder that holds `files`."""
    files: tuple[StoredFile, ...] = ()
    """Empty if the data is part of the package."""
    folders: tuple[str, ...] = ()
    """Other names of its folder in a data home, or absolute paths, that are searched too."""
    suffixes: tuple[str, ...] = ("",)
    """Suffixes that its files may have there: `.gz` if the reader decompresses."""
    mirrors: tuple[Mirror, ...] = ()

    @property
    def size(self) -> int:
        """Bytes on the disk."""
        return sum(file.size for file in self.files)

    def find(self) -> Path | None:
        """Folder that holds every file, or None."""
        candidates = (
            home / folder for home in homes("data") for folder in (self.name, *self.folders)
        )
        return next(filter(self._complete, candidates), None)

    def verify(self, folder: Path) -> None:
        """Raise unless every file in the folder is the original."""
        for file in self.files:
            path = folder / file.name
            if not path.is_file():
                raise DataError(f"{file.name} is missing")
            check_file(path, size=file.size, checksum=file.checksum)

    def _complete(self, folder: Path) -> bool:
        return all(any(_fits(folder, file, end) for end in self.suffixes) for file in self.files)


def _fits(folder: Path, file: StoredFile, suffix: str) -> bool:
    try:
        size = (folder / (file.name + suffix)).stat().st_size
    except OSError:
        return False
    return bool(suffix) or size == file.size


def open_data(
    spec: Data,
    *,
    download: bool = False,
    progress: Progress = SILENT,
    channels: int | None = None,
    survey: SurveyFiles = survey_files,
) -> DataSource:
    """Open a named dataset, a folder, archive, CSV, shards or tables, or images in memory.

    Downloads only with `download`.

    `channels` to read files with; None: as many as they have. Named data has its own.
    `survey` reads the files where a part must be held out.
    """
    if not isinstance(spec, str | os.PathLike):
        from vitlab.data.sources.memory import open_memory

        return open_memory(spec, channels=channels)
    name = os.fspath(spec)
    if name.startswith(MEMORY) and not is_address(name):
        raise DataError(f"{name}: these images were in memory; valid: the same images as data=")
    if name.startswith(HUGGING_FACE):
        from vitlab.data.sources.huggingface import hub_layout
        from vitlab.data.sources.shards import open_shards

        layout = hub_layout(name, download=download)
        return open_shards(layout, channels=channels, survey=survey)
    if name not in DATASETS:
        return _open_path(name, channels, survey)
    entry = DATASETS[name]
    if not isinstance(entry, Dataset):
        return replace(_registered(name, entry()), survey=survey)
    if not entry.files:
        return entry.open(Path())
    folder = entry.find()
    if folder is None and download:
        from vitlab.data.sources.fetch import fetch

        folder = fetch(entry, progress).path
    if folder is None:
        places = " or ".join(map(str, homes("data")))
        raise DataError(f"{name} is not in {places}; get it: vitlab data fetch {name}")
    return entry.open(folder)


def absolute(data: str | os.PathLike[str]) -> str:
    """Name of a dataset, an address, or a path that means the same from any folder."""
    name = os.fspath(data)
    if name in DATASETS or is_address(name):
        return name
    if name.startswith(HUGGING_FACE):
        folder = os.path.expanduser(name.removeprefix(HUGGING_FACE))
        exists = os.path.exists(folder.partition("#")[0])
        return HUGGING_FACE + os.path.abspath(folder) if exists else name
    return os.path.abspath(os.path.expanduser(name))


def dataset(name: str) -> Dataset:
    """Registered dataset of a name."""
    if name not in DATASETS:
        raise UnknownName("dataset", name, DATASETS)
    entry = DATASETS[name]
    if isinstance(entry, Dataset):
        return entry
    raise DataError(f"{name} was registered as a function: it has nothing to fetch")


def _open_path(spec: str, channels: int | None, survey: SurveyFiles) -> DataSource:
    from vitlab.data.shards.layout import find_layout
    from vitlab.data.sources.archive import is_archive, unpack
    from vitlab.data.sources.folder import open_folder
    from vitlab.data.sources.shards import open_shards
    from vitlab.data.sources.table import is_table, open_table

    path = Path(spec).expanduser()
    if is_table(path):
        return open_table(path, channels=channels, survey=survey)
    layout = find_layout(spec)
    if layout is not None:
        return open_shards(layout, channels=channels, survey=survey)
    if is_archive(path):
        source = open_folder(unpack(path), channels=channels, survey=survey)
        return replace(source, name=path.name)
    _check_no_model(spec, path)
    if path.exists():
        return open_folder(path, channels=channels, survey=survey)
    if "/" in spec or os.sep in spec:
        raise DataError(f"{spec}: no such folder")
    raise UnknownName("dataset or folder", spec, DATASETS)


def _check_no_model(spec: str, path: Path) -> None:
    """Raise with a hint for a model where data is expected."""
    named = not path.exists() and built_in(spec.partition(".")[0])
    stored = any((path / name).exists() for name in ("model.safetensors", "bundle"))
    if named or stored or (path.suffix in WEIGHT_SUFFIXES and path.is_file()):
        raise DataError(
            f"{spec} is a model, not data; are model and data swapped? "
            f"valid for data: {', '.join(DATASETS)}, a folder, a CSV, a zip or a tar file, "
            "shards, a Parquet or an Arrow file"
        )


def _registered(name: str, found: object) -> DataSource:
    if isinstance(found, DataSource):
        return found
    raise DataError(
        f"dataset {name!r} gave a {type(found).__name__}; valid: a function without arguments "
        "that returns a DataSource"
    )
