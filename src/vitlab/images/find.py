"""What folders hold and what words on the command line stand for; imports no torch.

Files are found while they are used: a million of them need not be listed first.
"""

import glob
import os
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Literal

from vitlab.images import open as image_file
from vitlab.images.bands import ARRAYS

SUFFIXES = ARRAYS.union(*image_file.ENDINGS.values())
ENDINGS = " ".join(sorted(SUFFIXES))
OTHERS = ".arw .cr2 .dng .eps .heic .heif .jp2 .nef .pdf .psd .svg .tga"
DOUBTFUL = frozenset(OTHERS.split())
"""Pictures to their owner that can hardly be read: better tried and named than passed by."""
HIDDEN = (".", "__")
"""How the names begin of what is left out."""
BLOCK = 10_000
"""Names that are sorted at once; only a folder of more is not sorted as a whole."""


def pointed_at(name: str) -> Literal["folder", "file", "pattern", "nothing"]:
    """What a name stands for; what exists is never taken for a pattern."""
    if os.path.isdir(name):
        return "folder"
    if os.path.lexists(name):
        return "file"
    return "pattern" if glob.has_magic(name) else "nothing"


def matching(pattern: str) -> Iterator[str]:
    """Whatever a pattern fits, but for folders."""
    return (path for path in glob.iglob(pattern, recursive=True) if not os.path.isdir(path))


def walk_images(folder: str) -> Iterator[str]:
    """Files with the ending of a picture, at any depth: a folder's own first, then its folders'.

    Links are followed, each folder once; hidden things are left out. The path of a folder that
    cannot be opened is among the files: reading it gives the reason.
    """
    visited, todo = Visited(), [folder]
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
    """The names block by block, each sorted: an order that needs no list of all of them."""
    iterator = iter(names)
    while block := sorted(islice(iterator, BLOCK)):
        yield from block


class Visited:
    """Folders that were entered: links may lead into one several times, or in a circle."""

    def __init__(self) -> None:
        self._known: set[tuple[int, int]] = set()

    def enter(self, folder: str) -> bool:
        """Whether this is the first time."""
        status = os.stat(folder)
        key = (status.st_dev, status.st_ino)
        first = key not in self._known
        self._known.add(key)
        return first


def visible(folder: str) -> Iterator["os.DirEntry[str]"]:
    """What is in a folder, but for hidden things."""
    with os.scandir(folder) as found:
        yield from (entry for entry in found if not entry.name.startswith(HIDDEN))


def _pictures(folder: str, inner: list[str]) -> Iterator[str]:
    """The pictures right in a folder; the folders in it are put into `inner`."""
    for entry in visible(folder):
        if is_folder(entry):
            inner.append(entry.path)
        elif os.path.splitext(entry.name)[1].lower() in SUFFIXES | DOUBTFUL:
            yield entry.path


def is_folder(entry: "os.DirEntry[str]") -> bool:
    """Whether an entry is a folder, or leads to one."""
    try:
        return entry.is_dir()
    except OSError:  # a link to itself, for one: reading it gives the reason
        return False
