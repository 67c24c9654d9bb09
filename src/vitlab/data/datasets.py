"""Data by name or path: the input of every training, evaluation and study."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from vitlab.data.home import homes
from vitlab.data.images import ImageSet
from vitlab.errors import DataError, UnknownName
from vitlab.io.download import SILENT, Progress, check_file
from vitlab.registry import DATASETS
from vitlab.task import Task

NAMED = 5
"""Maximum number of classes named in a message; beyond, their number is printed."""


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
    divided: bool = False
    """True if the test images were split off from all images here."""
    unjudged: str | None = None
    """Classes without test images, as text; None: all have some."""
    notes: tuple[str, ...] = ()
    """Decisions made from the data, for the user."""

    @property
    def told(self) -> tuple[str, ...]:
        """Notes, with the origin of a run's test images."""
        taken = f"A fifth of {self.name} is kept for testing, since it has no test images apart"
        return (*self.notes, taken) if self.divided else self.notes


def without_images(where: object, labels: Sequence[str]) -> str | None:
    """Note that a test split has no images of these classes; None if `labels` is empty."""
    if not labels:
        return None
    more = f" and {len(labels) - NAMED:,} more" if len(labels) > NAMED else ""
    return f"{where} has no images of {', '.join(labels[:NAMED])}{more}"


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
        candidates = (home / folder for home in homes() for folder in (self.name, *self.folders))
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
    spec: str | os.PathLike[str],
    *,
    download: bool = False,
    progress: Progress = SILENT,
    channels: int | None = None,
) -> DataSource:
    """Open a named dataset, a folder of images, or a CSV; downloads only with `download`.

    `channels` to read files with; None: as many as they have. Named data has its own.
    """
    name = os.fspath(spec)
    if name not in DATASETS:
        return _open_path(name, channels)
    entry = DATASETS[name]
    if not isinstance(entry, Dataset):
        return _registered(name, entry())
    if not entry.files:
        return entry.open(Path())
    folder = entry.find()
    if folder is None and download:
        from vitlab.data.sources.fetch import fetch

        folder = fetch(entry, progress).path
    if folder is None:
        raise DataError(
            f"{name} is not in {' or '.join(map(str, homes()))}; get it: vitlab data fetch {name}"
        )
    return entry.open(folder)


def dataset(name: str) -> Dataset:
    """Registered dataset of a name."""
    if name not in DATASETS:
        raise UnknownName("dataset", name, DATASETS)
    entry = DATASETS[name]
    if isinstance(entry, Dataset):
        return entry
    raise DataError(f"{name} was registered as a function: it has nothing to fetch")


def _open_path(spec: str, channels: int | None) -> DataSource:
    from vitlab.data.sources.folder import open_folder
    from vitlab.data.sources.table import is_table, open_table

    path = Path(spec).expanduser()
    if is_table(path):
        return open_table(path, channels=channels)
    if path.exists():
        return open_folder(path, channels=channels)
    if "/" in spec or os.sep in spec:
        raise DataError(f"{spec}: no such folder")
    raise UnknownName("dataset or folder", spec, DATASETS)


def _registered(name: str, found: object) -> DataSource:
    if isinstance(found, DataSource):
        return found
    raise DataError(
        f"dataset {name!r} gave a {type(found).__name__}; valid: a function without arguments "
        "that returns a DataSource"
    )
