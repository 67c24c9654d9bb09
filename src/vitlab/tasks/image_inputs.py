"""Which images a command means: files, folders, patterns, and what comes through standard input."""

import io
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice

from vitlab.data.walk import ENDINGS, in_blocks, matching, pointed_at, walk_images
from vitlab.errors import InputError
from vitlab.inference.pictures import Picture

STDIN = "-"
MAGIC = (b"\xff\xd8\xff", b"\x89PNG", b"GIF87a", b"GIF89a", b"RIFF", b"BM", b"%PDF-")
"""First bytes of pictures, up to the first that could be the end of a line."""


@dataclass(frozen=True, kw_only=True)
class ImageInputs:
    """What was named; the images themselves are found while they are asked for."""

    names: Sequence[str]
    stdin: Callable[[], io.BufferedIOBase]
    """Where `-` reads: an image, or the path of one on each line."""

    def __post_init__(self) -> None:
        if not self.names:
            raise InputError("no images named; valid: image files, folders, patterns or -")
        if self.names.count(STDIN) > 1:
            raise InputError("- is standard input, which can be read once; found more than one")
        for name in self.names:
            _check(name)

    @property
    def absolute(self) -> list[str]:
        """The names as they mean the same from any folder."""
        return [name if name == STDIN else os.path.abspath(name) for name in self.names]

    @property
    def single(self) -> bool:
        """Whether one file is meant, and not what may be found somewhere."""
        return len(self.names) == 1 and pointed_at(self.names[0]) == "file"

    def find(self) -> Iterator[Picture]:
        """The images one after the other, in an order that is the same each time."""
        for name in self.names:
            if name != STDIN:
                next(iter(self._find(name)))  # an error now, and not when half of the work is done
        return chain.from_iterable(map(self._find, self.names))

    def count(self, most: int | None = None) -> int | None:
        """How many there are, found by looking for them; unknown for standard input.

        No more than `most` are looked for.
        """
        if STDIN in self.names:
            return None
        return sum(1 for _ in islice(self.find(), most))

    def _find(self, name: str) -> Iterable[Picture]:
        if name == STDIN:
            return _piped(self.stdin())
        kind = pointed_at(name)
        if kind == "folder":
            return _some(
                walk_images(name), f"{name} holds no image files; valid endings: {ENDINGS}"
            )
        if kind == "file":
            return [name]
        return _some(in_blocks(matching(name)), f"{name} matches no file")


def _check(name: str) -> None:
    if name != STDIN and pointed_at(name) == "nothing":
        raise InputError(f"{name}: no such file or folder")


def _some(paths: Iterator[str], message: str) -> Iterator[str]:
    """The paths, of which there must be one."""
    first = next(paths, None)
    if first is None:
        raise InputError(message)
    yield first
    yield from paths


def _piped(stream: io.BufferedIOBase) -> Iterator[Picture]:
    """One picture, or the paths that the lines give, as they come."""
    start = stream.readline()
    if _is_picture(start):
        yield io.BytesIO(start + stream.read())
        return
    lines = (os.fsdecode(line.rstrip(b"\r\n")) for line in chain([start], stream))
    message = "standard input is empty; valid: an image, or one path a line"
    yield from _some((path for path in lines if path), message)


def _is_picture(start: bytes) -> bool:
    """Whether a stream that begins with this line holds a picture; no path holds a zero byte."""
    line = start.rstrip(b"\r\n")
    return b"\0" in line or (line.startswith(MAGIC) and not os.path.lexists(line))
