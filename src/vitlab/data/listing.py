"""Every file of a folder with its split and class, whatever is wrong with the folder."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from vitlab.data.folder import (
    TEST,
    TRAIN,
    all_files,
    entries,
    has_splits,
    is_named_image,
    subfolders,
)
from vitlab.errors import DataError

WHOLE = ""
"""The split of a folder that has none."""


@dataclass(frozen=True, slots=True)
class ListedFile:
    """A file, and what its place says about it."""

    path: str
    """Below the folder, with slashes."""
    split: str
    label: str | None
    """None where it stands in no class."""
    named_image: bool
    """Whether its ending is that of an image."""


@dataclass(frozen=True, kw_only=True)
class Listing:
    """What a folder holds."""

    root: Path
    classes: dict[str, tuple[str, ...]]
    """Class folders by split; a split `""` where class folders are all there is."""
    files: tuple[ListedFile, ...]


def list_folder(root: Path) -> Listing:
    """All files of a folder; only one without any is an error."""
    if not root.is_dir():
        found = "is not a folder" if root.exists() else "no such folder"
        raise DataError(f"{root}: {found}; valid: a folder of one folder for each class")
    splits = _splits(root)
    classes = {split: tuple(sorted(subfolders(root / split))) for split in splits}
    files = tuple(_files(root, classes))
    if not files and not any(classes.values()):
        raise DataError(f"{root} is empty; valid: one folder of images for each class")
    return Listing(root=root, classes=classes, files=files)


def _splits(root: Path) -> list[str]:
    if not has_splits(root):
        return [WHOLE]
    return [name for name in (TRAIN, *TEST) if (root / name).is_dir()]


def _files(root: Path, classes: dict[str, tuple[str, ...]]) -> Iterator[ListedFile]:
    if WHOLE not in classes:
        yield from _loose(root, root, WHOLE)
    for split, labels in classes.items():
        yield from _loose(root, root / split, split)
        for label in labels:
            for path in sorted(all_files(root / split / label)):
                yield _listed(root, path, split, label)


def _loose(root: Path, folder: Path, split: str) -> Iterator[ListedFile]:
    """Files beside the class folders."""
    for entry in sorted(entries(str(folder)), key=lambda entry: entry.name):
        if entry.is_file():
            yield _listed(root, entry.path, split, None)


def _listed(root: Path, path: str, split: str, label: str | None) -> ListedFile:
    below = Path(path).relative_to(root).as_posix()
    return ListedFile(below, split, label, is_named_image(path))
