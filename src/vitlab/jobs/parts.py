"""Predictions and features of very many images in parts: any number of processes, in any order.

The list of images is divided into ranges, which do not depend on the processes. Each range is a
file in `OUT.parts`, written whole or not at all; a range whose file exists is not computed again.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from vitlab.config import parse_json
from vitlab.data.shards.index import Index
from vitlab.data.shards.layout import index_at
from vitlab.errors import ConfigError, FileError, InputError, VitlabError, one_line
from vitlab.images.pixels import ImageSource, path_of
from vitlab.io.files import locked, replacing, write_json
from vitlab.machine.world import rank_and_size

IMAGES = 1024
"""Images of a part, or a few less, so that it is a number of whole batches."""
SETTINGS, LIST = "parts.json", "images.jsonl"
FORMAT_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Share:
    """Parts of one process: every `of`-th, from `number` (from 0)."""

    number: int
    of: int

    @classmethod
    def parse(cls, text: str | None) -> "Share":
        """Share from `i/n` (from 1), or that of this process among those of a launcher."""
        if text is None:
            rank, size = rank_and_size()
            return cls(number=rank, of=size)
        number, slash, of = text.partition("/")
        if not (slash and number.isdecimal() and of.isdecimal() and 1 <= int(number) <= int(of)):
            raise ConfigError(f"part {text!r}; valid: i/n with i from 1 to n, such as 3/16")
        return cls(number=int(number) - 1, of=int(of))


@runtime_checkable
class ImageList(Protocol):
    """Images by number."""

    digest: str
    """Hash of the names, or of the index."""

    def __len__(self) -> int: ...

    def pictures(self, start: int, end: int) -> Sequence[ImageSource]:
        """Images from `start` to before `end`."""
        ...


class IndexedList:
    """Images of shards or tables."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self.digest = index.header.digest

    def __len__(self) -> int:
        return len(self._index)

    def pictures(self, start: int, end: int) -> Sequence[ImageSource]:
        """Images from `start` to before `end`."""
        return [self._index.image(number) for number in range(start, end)]


class FileList:
    """Image files, sorted by name."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names
        digest = hashlib.blake2b(digest_size=16)
        for name in names:
            digest.update(os.fsencode(name) + b"\0")
        self.digest = digest.hexdigest()

    def __len__(self) -> int:
        return len(self.names)

    def pictures(self, start: int, end: int) -> Sequence[ImageSource]:
        """Images from `start` to before `end`."""
        return self.names[start:end]


def list_inputs(names: Sequence[str], find: Callable[[], Iterator[ImageSource]]) -> ImageList:
    """Images of one address of shards or tables, or the files that `find` yields."""
    indices = [index_at(name) for name in names]
    if len(names) == 1 and indices[0] is not None:
        return IndexedList(indices[0])
    if any(index is not None for index in indices):
        raise InputError("shards or tables beside other images in parts; valid: one of them alone")
    return FileList(sorted(filter(None, map(path_of, find()))))


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The folder of the parts of one output."""

    output: Path
    ending: str
    """Ending of the parts."""

    @property
    def folder(self) -> Path:
        """Folder of the parts."""
        return self.output.with_name(f"{self.output.name}.parts")

    def path(self, number: int) -> Path:
        """File of a part."""
        return self.folder / f"{number:06}{self.ending}"

    @cached_property
    def settings(self) -> dict[str, Any]:
        """Settings that all parts share; raises if there are none."""
        path = self.folder / SETTINGS
        if not path.is_file():
            raise FileError(
                f"{self.folder}: no parts; valid: an --output that was begun with --parts"
            )
        try:
            content = parse_json(path.read_bytes())
            if content["format_version"] != FORMAT_VERSION or content["size"] < 1:
                raise ValueError(f"format_version {content['format_version']}")
            return dict(content)
        except (VitlabError, ValueError, LookupError, TypeError) as error:
            raise FileError(f"{path}: not the settings of parts ({one_line(error)})") from error

    @property
    def count(self) -> int:
        """Number of parts."""
        return -(-self.images // int(self.settings["size"]))

    @property
    def images(self) -> int:
        """Number of images of all parts."""
        return int(self.settings["images"])

    def bounds(self, number: int) -> tuple[int, int]:
        """First image of a part, and the one behind its last."""
        size = int(self.settings["size"])
        return number * size, min((number + 1) * size, self.images)

    @property
    def missing(self) -> list[int]:
        """Parts that are not there."""
        there = set(os.listdir(self.folder))
        return [number for number in range(self.count) if self.path(number).name not in there]

    def mine(self, share: Share) -> list[int]:
        """Missing parts of one process."""
        return [number for number in self.missing if number % share.of == share.number]

    def begin(
        self,
        images: Callable[[], ImageList],
        settle: Callable[[dict[str, Any] | None], dict[str, Any]],
        *,
        overwrite: bool,
    ) -> ImageList:
        """List of the images; the first process writes it, with the settings.

        `settle` returns the settings, given those of earlier processes, and raises where they
        differ; their `batch_size` decides the size of the parts.
        """
        if overwrite:
            shutil.rmtree(self.folder, ignore_errors=True)
        try:
            self.folder.mkdir(exist_ok=True)
        except OSError as error:
            raise FileError(f"{self.folder}: cannot be made ({error.strerror})") from error
        with locked(self.folder / ".lock", lambda: None):
            if (self.folder / SETTINGS).exists():
                found = self._listed(images)
                settle(self.settings["settings"])
                return found
            found, settled = images(), settle(None)
            if isinstance(found, FileList):
                with replacing(self.folder / LIST) as file:
                    file.writelines(json.dumps(name).encode() + b"\n" for name in found.names)
            batch = int(settled["batch_size"])
            content = {
                "format_version": FORMAT_VERSION,
                "images": len(found),
                "size": max(IMAGES // batch, 1) * batch,
                "digest": found.digest,
                "settings": settled,
            }
            write_json(self.folder / SETTINGS, content)
            return found

    def _listed(self, images: Callable[[], ImageList]) -> ImageList:
        """The list of earlier processes: files that were added since are not part of it."""
        path = self.folder / LIST
        try:
            lines = path.read_bytes().splitlines()
            found: ImageList = FileList([json.loads(line) for line in lines])
        except FileNotFoundError:
            found = images()
        except ValueError as error:
            raise FileError(f"{path}: not a list of images ({one_line(error)})") from error
        if found.digest != self.settings["digest"]:
            raise FileError(f"{self.folder} was begun with other images; --overwrite starts anew")
        return found

    def check_complete(self) -> None:
        """Raise if parts are missing."""
        missing = self.missing
        if missing:
            raise FileError(
                f"{len(missing):,} of {self.count:,} parts of {self.output} are missing, such as "
                f"{self.path(missing[0]).name}; run the command that writes them again"
            )
