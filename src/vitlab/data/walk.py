"""Image files of a folder, found while they are used: a million of them need not be listed first.

Imports no torch.
"""

import os
from collections.abc import Iterable, Iterator
from itertools import islice

ENDINGS = ".bmp .gif .jfif .jpe .jpeg .jpg .npy .pbm .pgm .png .pnm .ppm .tif .tiff .webp"
SUFFIXES = frozenset(ENDINGS.split())
OTHERS = ".arw .avif .cr2 .dng .heic .heif .jp2 .mpo .nef .pdf .psd .svg .tga"
DOUBTFUL = frozenset(OTHERS.split())
"""Pictures to their owner that can hardly be read: better tried and named than passed by."""
BLOCK = 10_000
"""Names that are sorted at once; only a folder of more is not sorted as a whole."""


def walk_images(folder: str) -> Iterator[str]:
    """Files with the ending of a picture, at any depth: a folder's own first, then its folders'.

    Links are followed, each folder once; hidden things are left out. The path of a folder that
    cannot be opened is among the files: reading it gives the reason.
    """
    seen: set[tuple[int, int]] = set()
    todo = [folder]
    while todo:
        place = todo.pop()
        try:
            status = os.stat(place)
            if (status.st_dev, status.st_ino) in seen:
                continue
            seen.add((status.st_dev, status.st_ino))
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


def _pictures(folder: str, inner: list[str]) -> Iterator[str]:
    """The pictures right in a folder; the folders in it are put into `inner`."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith((".", "__")):
                continue
            if _is_folder(entry):
                inner.append(entry.path)
            elif os.path.splitext(entry.name)[1].lower() in SUFFIXES | DOUBTFUL:
                yield entry.path


def _is_folder(entry: "os.DirEntry[str]") -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself, for one: reading it gives the reason
        return False
