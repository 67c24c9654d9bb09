"""Find image files in folders and expand command-line arguments; imports no torch.

Files are found lazily: a million of them need not be listed first.
"""

import glob
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import PurePath
from typing import Literal

from vitlab.images import open as image_file
from vitlab.images.open import ARRAYS

SUFFIXES = ARRAYS.union(*image_file.ENDINGS.values())
ENDINGS = " ".join(sorted(SUFFIXES))
FOREIGN = {
    ".arw": "Sony raw",
    ".cr2": "Canon raw",
    ".cr3": "Canon raw",
    ".dng": "raw",
    ".eps": "EPS",
    ".jp2": "JPEG 2000",
    ".jxl": "JPEG XL",
    ".nef": "Nikon raw",
    ".pdf": "PDF",
    ".psd": "Photoshop",
    ".raf": "Fuji raw",
    ".svg": "SVG",
    ".tga": "TGA",
}
"""Image formats that can hardly be read: tried and reported rather than skipped."""
REMEDY = "convert them to JPEG or PNG"


def foreign_formats(paths: Iterable[str]) -> str:
    """Number of files of each format that is not read, such as `3 PDF, 1 Sony raw`."""
    endings = (os.path.splitext(path)[1].lower() for path in paths)
    found = Counter(FOREIGN[ending] for ending in endings if ending in FOREIGN)
    return ", ".join(f"{count:,} {name}" for name, count in found.most_common())


def foreign_note(paths: Iterable[str]) -> str | None:
    """Note about files in formats that are not read: how many of each, and the remedy."""
    found = foreign_formats(paths)
    return f"files in formats that are not read: {found}; {REMEDY}" if found else None


HIDDEN = (".", "__")
"""Prefixes of hidden names, which are skipped."""
BLOCK = 10_000
"""Number of names sorted at once; only larger folders are not sorted as a whole."""


def pointed_at(name: str) -> Literal["folder", "file", "pattern", "nothing"]:
    """Paths that an argument stands for; an existing path is never a pattern."""
    if os.path.isdir(name):
        return "folder"
    if os.path.lexists(name):
        return "file"
    return "pattern" if glob.has_magic(name) else "nothing"


def matching(pattern: str) -> Iterator[str]:
    """Paths that match a pattern, except folders."""
    return (path for path in glob.iglob(pattern, recursive=True) if not os.path.isdir(path))


def walk_images(folder: str) -> Iterator[str]:
    """Image files by extension, at any depth: a folder's own files first, then its subfolders.

    Links are followed, each folder once, but none to a folder above; hidden names are skipped. The
    path of a folder that cannot be opened is among the files: reading it raises with the reason.
    """
    visited, todo = Visited(folder), [folder]
    while todo:
        place = todo.pop()
        try:
            if not visited.enter(place):
                continue
            inner: list[str] = []
            yield from in_blocks(_pictures(place, inner))
        except OSError:
            yield place
            continue
        todo += sorted(inner, reverse=True)


def in_blocks(names: Iterable[str]) -> Iterator[str]:
    """Names in sorted blocks: an order that needs no list of all of them."""
    iterator = iter(names)
    while block := sorted(islice(iterator, BLOCK)):
        yield from block


class Visited:
    """Visited folders: links may lead into one several times, in a circle, or up.

    A link to a folder that contains `root` is not followed: it would add the files beside it.
    """

    def __init__(self, root: str) -> None:
        self._known: set[tuple[int, int]] = set()
        for path in {os.path.abspath(root), os.path.realpath(root)}:
            for above in PurePath(path).parents:
                with suppress(OSError):
                    self._known.add(_identity(str(above)))

    def enter(self, folder: str) -> bool:
        """True on the first visit."""
        key = _identity(folder)
        first = key not in self._known
        self._known.add(key)
        return first


def _identity(folder: str) -> tuple[int, int]:
    status = os.stat(folder)
    return status.st_dev, status.st_ino


def visible(folder: str) -> Iterator["os.DirEntry[str]"]:
    """Entries of a folder, without hidden ones."""
    with os.scandir(folder) as found:
        yield from (entry for entry in found if not entry.name.startswith(HIDDEN))


def _pictures(folder: str, inner: list[str]) -> Iterator[str]:
    """Image files directly in a folder; its subfolders are added to `inner`."""
    for entry in visible(folder):
        if is_folder(entry):
            inner.append(entry.path)
        elif (ending := os.path.splitext(entry.name)[1].lower()) in SUFFIXES or ending in FOREIGN:
            yield entry.path


def is_folder(entry: "os.DirEntry[str]") -> bool:
    """True if an entry is a folder, or a link to one."""
    try:
        return entry.is_dir()
    except OSError:  # such as a link to itself: reading it raises with the reason
        return False
