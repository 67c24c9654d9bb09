"""Folders of images: `train/CLASS/*` and `test/CLASS/*`, class folders to split, or no classes."""

import os
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import chain
from pathlib import Path

import torch

from vitlab.data.datasets import Data, DataSource, SurveyFiles, open_data, without_images
from vitlab.data.duplicates import check_readable
from vitlab.data.images import FileSet, ImageSet
from vitlab.data.shards.layout import TEST, TRAIN, find_layout
from vitlab.data.shards.store import may_be_shards
from vitlab.data.sources.archive import is_archive, unpack
from vitlab.data.split import hold_out, survey_files
from vitlab.errors import DataError, suggest
from vitlab.images.find import (
    ENDINGS,
    SUFFIXES,
    Visited,
    foreign_note,
    is_folder,
    visible,
)
from vitlab.images.statistics import read_settings, spread
from vitlab.registry import DATASETS
from vitlab.wordnet import shown_class

TEST_SHARE = 0.2
SPLIT_SEED = 0
LOOKED_AT = 10
"""Classes, and files of each, from which the number of channels is determined."""


def open_folder(
    root: Path, *, channels: int | None = None, survey: SurveyFiles = survey_files
) -> DataSource:
    """Images of a folder, one class per subfolder; `channels` as in `look`."""
    if not root.is_dir():
        raise DataError(
            f"{root} is not a folder; valid: a folder with one folder of images for each class, "
            "a zip or tar file of it, or a CSV"
        )
    if has_splits(root):
        return replace(_open_splits(root, channels), survey=survey)
    return replace(_open_classes(root, channels, survey), survey=survey)


def has_splits(root: Path) -> bool:
    """`train` is a split where it holds folders, or stands beside nothing but splits."""
    names = subfolders(root)
    return TRAIN in names and (bool(subfolders(root / TRAIN)) or names <= {TRAIN, *TEST})


def _open_splits(root: Path, channels: int | None) -> DataSource:
    train = class_folders(root / TRAIN)
    test = next((root / name for name in TEST if (root / name).is_dir()), None)
    unjudged = None
    if test is not None:
        _check_classes(test, class_folders(test, least=1), train)
        _check_filled(test)
        check_readable(test, _some_files(class_folders(test, least=1)))
        unjudged = without_images(test, sorted(set(train) - subfolders(test)))

    def open_test() -> FileSet:
        assert test is not None
        found = class_folders(test, least=1)
        return read_classes({name: found.get(name) for name in train})

    open_train = partial(read_classes, train)
    source = _source(root, train, open_train, open_test if test else None, channels)
    return replace(source, unjudged=unjudged, tested=len(open_test()) if test else None)


def _open_classes(root: Path, channels: int | None, survey: SurveyFiles) -> DataSource:
    classes = class_folders(root)

    @cache
    def split() -> tuple[ImageSet, ImageSet]:
        images = survey(read_classes(classes))
        try:
            return hold_out(images, share=TEST_SHARE, seed=SPLIT_SEED)
        except DataError as error:
            raise DataError(
                f"{root} is too small to be split by us ({error}); valid: at least 3 different "
                f"images of each class, or folders {TRAIN} and {TEST[0]} in it"
            ) from error

    source = _source(root, classes, lambda: split()[0], lambda: split()[1], channels)
    return replace(source, divided=True)


def _source(
    root: Path,
    classes: Mapping[str, Path],
    open_train: Callable[[], ImageSet],
    open_test: Callable[[], ImageSet] | None,
    channels: int | None,
) -> DataSource:
    def training() -> tuple[Path, ...]:
        images = open_train()
        assert isinstance(images, FileSet)
        return images.paths

    seen = read_settings(_some_files(classes), training, channels=channels)
    return DataSource(
        name=root.absolute().name,
        labels=tuple(map(shown_class, classes)),
        channels=seen.channels,
        image_size=None,
        open_train=open_train,
        open_test=open_test,
        mean=seen.mean,
        std=seen.std,
        white=seen.white,
        notes=_notes(seen.note, classes.values()),
    )


def _notes(note: str | None, folders: Iterable[Path]) -> tuple[str, ...]:
    """Notes on a source: one that may be there, and one on formats that are skipped."""
    skipped = foreign_note(chain.from_iterable(map(all_files, folders)))
    return tuple(text for text in (note, skipped and f"{skipped[0].upper()}{skipped[1:]}") if text)


def _some_files(classes: Mapping[str, Path]) -> list[Path]:
    """A few files of some of the classes, always the same."""
    folders = spread(list(classes.values()), LOOKED_AT)
    return [
        Path(file) for folder in folders for file in spread(sorted(image_files(folder)), LOOKED_AT)
    ]


def class_folders(folder: Path, *, least: int = 2) -> dict[str, Path]:
    """Subfolders by name, sorted; raises for fewer than `least`, or two similar names."""
    names = sorted(subfolders(folder))
    if not names:
        found = "holds files but no folders" if any(entries(os.fspath(folder))) else "is empty"
        raise DataError(f"{folder} {found}; valid: one folder of images for each class")
    if len(names) < least:
        raise DataError(f"{folder} holds one class, {names[0]!r}; valid: at least {least}")
    check_alike(str(folder), names)
    return {name: folder / name for name in names}


def check_alike(where: str, names: Iterable[str]) -> None:
    """Raise for class names that people take for one."""
    known: dict[str, str] = {}
    for name in names:
        other = known.setdefault(folded(name), name)
        if other != name:
            raise DataError(
                f"{where} holds the classes {other!r} and {name!r}, which differ only in case or "
                "accents' encoding; rename or merge them"
            )


def read_classes(classes: Mapping[str, Path | None]) -> FileSet:
    """All image files of the classes, class by class, each sorted; raises for an empty class."""
    paths: list[Path] = []
    labels: list[int] = []
    for label, folder in enumerate(classes.values()):
        if folder is None:
            continue
        found = sorted(image_files(folder))
        if not found:
            raise _without_images(folder)
        paths += map(Path, found)
        labels += [label] * len(found)
    return FileSet(paths=tuple(paths), labels=torch.tensor(labels, dtype=torch.int64))


def image_files(folder: Path) -> Iterator[str]:
    """Files with the extension of an image, at any depth."""
    return filter(is_named_image, all_files(folder))


def is_named_image(path: str) -> bool:
    """True if the extension is that of an image."""
    return os.path.splitext(path)[1].lower() in SUFFIXES


def all_files(folder: Path) -> Iterator[str]:
    """Files at any depth; links are followed, each folder once, and dead ones are kept."""
    visited, todo = Visited(os.fspath(folder)), [os.fspath(folder)]
    while todo:
        place = todo.pop()
        if not visited.enter(place):
            continue
        for entry in entries(place):
            if is_folder(entry):
                todo.append(entry.path)
            elif (entry.is_symlink() and not os.path.exists(entry.path)) or entry.is_file():
                yield entry.path


def subfolders(folder: Path) -> set[str]:
    """Names of the folders in a folder."""
    return {entry.name for entry in entries(os.fspath(folder)) if is_folder(entry)}


def entries(folder: str) -> Iterator["os.DirEntry[str]"]:
    """Entries of a folder, without hidden ones."""
    try:
        yield from visible(folder)
    except OSError as error:
        raise DataError(f"{folder}: {error.strerror}") from error


def _check_classes(folder: Path, found: Iterable[str], known: Iterable[str]) -> None:
    """Raise if a class of a test split is not a training class with the same spelling."""
    for name in found:
        if name not in known:
            raise DataError(
                f"{folder} holds the class {name!r}, which is not trained; {suggest(name, known)}"
            )


def _check_filled(folder: Path) -> None:
    """Raise before training if a class of an existing test split has no images."""
    for name in sorted(subfolders(folder)):
        if not any(image_files(folder / name)):
            raise _without_images(folder / name)


def _without_images(folder: Path) -> DataError:
    skipped = foreign_note(all_files(folder))
    found = f" ({skipped})" if skipped else ""
    return DataError(f"{folder} holds no image files{found}; valid endings: {ENDINGS}")


def folded(name: str) -> str:
    """Name without regard to case and to the encoding of accents."""
    return unicodedata.normalize("NFC", name).casefold()


NO_LABEL = "unlabelled"
"""Placeholder for classes."""


def open_unlabelled(
    spec: Data,
    *,
    download: bool = False,
    channels: int | None = None,
    survey: SurveyFiles = survey_files,
) -> DataSource:
    """Same as `open_data`; for a folder without class folders, or shards, all its images."""
    if not isinstance(spec, str | os.PathLike):
        return open_data(spec, channels=channels)
    root = Path(os.fspath(spec)).expanduser()
    if is_archive(root):
        root = unpack(root)
        spec = root
    name = os.fspath(spec)
    layout = find_layout(name) if name not in DATASETS and may_be_shards(name) else None
    if layout is not None:
        from vitlab.data.sources.shards import open_shards

        return open_shards(layout, channels=channels, survey=survey, labelled=False)
    if name in DATASETS or not root.is_dir():
        return open_data(spec, download=download, channels=channels, survey=survey)
    images = root / TRAIN if has_splits(root) else root
    if len(subfolders(images)) > 1:
        return open_data(spec, download=download, channels=channels, survey=survey)
    return replace(_unlabelled_source(root, images, channels), survey=survey)


def _unlabelled_source(root: Path, folder: Path, channels: int | None) -> DataSource:
    paths = tuple(Path(file) for file in sorted(image_files(folder)))
    if not paths:
        raise _without_images(folder)
    seen = read_settings(paths, lambda: paths, channels=channels)
    return DataSource(
        name=root.absolute().name,
        labels=(NO_LABEL,),
        channels=seen.channels,
        image_size=None,
        open_train=lambda: _all_of(paths),
        open_test=None,
        mean=seen.mean,
        std=seen.std,
        white=seen.white,
        notes=_notes(seen.note, [folder]),
    )


def _all_of(paths: Sequence[Path]) -> FileSet:
    return FileSet(paths=tuple(paths), labels=torch.zeros(len(paths), dtype=torch.int64))
