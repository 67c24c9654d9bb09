"""Predictions and features of very many images in parts: any number of processes, in any order.

The list of images is divided into ranges, which do not depend on the processes. Each range is a
file in `OUT.parts`, written whole or not at all; a range whose file exists is not computed again.
The name of the file ends with the digest of the model, the list and the options.
"""

import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

from vitlab.config import parse_json
from vitlab.data.shards.index import Index
from vitlab.data.shards.layout import index_at
from vitlab.data.shards.store import MAY_PASS
from vitlab.errors import ConfigError, FileError, InputError, VitlabError, one_line
from vitlab.images.pixels import ImageSource, path_of
from vitlab.io.files import locked, replacing, write_json
from vitlab.jobs.predict import Predicted
from vitlab.machine.world import rank_and_size

PART = re.compile(r"\d{6,}[-.]")
"""Beginning of the name of a part."""
UNTIED = ("model", "images", "written", "finished")
"""Settings that may differ between parts: names of what the digests identify."""
IMAGES = 1024
"""Images of a part, or a few less, so that it is a number of whole batches."""
MOST_THREADS = 8
"""Threads of a process: with more, several would compute one batch, and its last bits differ."""
SETTINGS, LIST = "parts.json", "images.jsonl"
FORMAT_VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Share:
    """Parts of one process: every `of`-th, from `number` (from 0)."""

    number: int
    of: int

    @classmethod
    def parse(cls, text: str | None) -> "Share":
        """Share `i/n` (from 1; None: all), divided among the processes of a launcher."""
        rank, size = rank_and_size()
        number, slash, of = (text or "1/1").partition("/")
        if not (slash and number.isdecimal() and of.isdecimal() and 1 <= int(number) <= int(of)):
            raise ConfigError(f"part {text!r}; valid: i/n with i from 1 to n, such as 3/16")
        return cls(number=int(number) - 1 + int(of) * rank, of=int(of) * size)


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
        self.index = index
        self.digest = index.header.digest

    def __len__(self) -> int:
        return len(self.index)

    def pictures(self, start: int, end: int) -> Sequence[ImageSource]:
        """Images from `start` to before `end`."""
        return [self.index.image(number) for number in range(start, end)]


class FileList:
    """Image files in a fixed order, with a label each where these are used."""

    def __init__(self, names: Sequence[str], labels: Sequence[str] = ()) -> None:
        self.names, self.labels = names, labels
        digest = hashlib.blake2b(digest_size=16)
        for text in (*names, *labels):
            digest.update(os.fsencode(text) + b"\0")
        self.digest = digest.hexdigest()

    def to_lines(self) -> Iterator[bytes]:
        """Lines of JSON: names, or pairs of a name and a label."""
        rows = zip(self.names, self.labels, strict=True) if self.labels else self.names
        return (json.dumps(row).encode() + b"\n" for row in rows)

    @classmethod
    def from_lines(cls, lines: Sequence[bytes]) -> "FileList":
        """List from the output of `to_lines`."""
        rows = [json.loads(line) for line in lines]
        if all(isinstance(row, str) for row in rows):
            return cls(rows)
        return cls([name for name, _ in rows], [label for _, label in rows])

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
        return self.folder / f"{number:06}-{self.settings['job']}{self.ending}"

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
            if content["job"] != _job_digest(content):
                raise ValueError(f"they were changed: job {str(content['job'])[:20]}")
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

    def length(self, number: int) -> int:
        """Number of images of a part."""
        start, end = self.bounds(number)
        return end - start

    @property
    def missing(self) -> list[int]:
        """Parts that are not there; raises for parts of another job."""
        there = {name for name in os.listdir(self.folder) if PART.match(name)}
        names = [self.path(number).name for number in range(self.count)]
        foreign = sorted(name for name in there.difference(names) if name.endswith(self.ending))
        if foreign:
            raise FileError(
                f"{self.folder / foreign[0]} is a part of another model, other images or other "
                "options; valid: a folder with the parts of one job (remove it, or --overwrite)"
            )
        return [number for number, name in enumerate(names) if name not in there]

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
                    file.writelines(found.to_lines())
            batch = int(settled["batch_size"])
            content = {
                "format_version": FORMAT_VERSION,
                "images": len(found),
                "size": max(IMAGES // batch, 1) * batch,
                "digest": found.digest,
                "settings": settled,
            }
            write_json(self.folder / SETTINGS, {**content, "job": _job_digest(content)})
            return found

    def _listed(self, images: Callable[[], ImageList]) -> ImageList:
        """The list of earlier processes: files that were added since are not part of it."""
        path = self.folder / LIST
        try:
            found: ImageList = FileList.from_lines(path.read_bytes().splitlines())
        except FileNotFoundError:
            found = images()
        except (ValueError, TypeError) as error:
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


def _job_digest(content: dict[str, Any]) -> str:
    """Digest of the model, the list of images and the options, in the names of the parts."""
    settings = {key: value for key, value in content["settings"].items() if key not in UNTIED}
    tied = json.dumps([content["images"], content["size"], content["digest"], settings])
    return hashlib.blake2b(tied.encode(), digest_size=6).hexdigest()


# The work of one process.


class Done(NamedTuple):
    """Images that were computed, and those among them that cannot be read."""

    images: int
    failed: Sequence[tuple[str | None, str]]
    """Path and reason of each."""


@runtime_checkable
class PartsJob(Protocol):
    """A model that computes parts."""

    @property
    def parts(self) -> Parts:
        """Folder of the parts."""
        ...

    def compute(self, number: int) -> Iterator[Done]:
        """Write a part; yields after each batch."""
        ...


def checked(done: Done) -> Done:
    """Images of a part; raises if a store failed, since other attempts may find them."""
    for path, reason in done.failed:
        if MAY_PASS.search(reason):
            raise InputError(
                f"{path}: {reason}; parts that are complete stay, the same command continues"
            )
    return done


Each = Callable[[str | None, str], None]
"""Callback with path and reason of an image that cannot be read."""
Watch = Callable[[int, int | None], None]
"""Callback with the number of images done, and their total."""


def check_overwrite(share: Share, *, overwrite: bool) -> None:
    """Raise where one of several processes would delete the parts of the others."""
    if overwrite and share.of > 1:
        raise ConfigError("--overwrite in one of several processes; valid: delete OUT.parts first")


def work_on(
    parts: Parts,
    share: Share,
    compute: Callable[[Sequence[int]], Iterator[Done]],
    *,
    each: Each,
    watch: Watch | None,
) -> Predicted:
    """Compute the parts of a share that are not there."""
    began, numbers = time.monotonic(), parts.mine(share)
    own = range(share.number, parts.count, share.of)
    before = sum(map(parts.length, set(own) - set(numbers)))
    total = before + sum(map(parts.length, numbers))
    done, failed = before, 0
    for batch in compute(numbers) if numbers else ():
        done, failed = done + batch.images, failed + len(batch.failed)
        for path, reason in batch.failed:
            each(path, reason)
        if watch is not None:
            watch(done, total)
    seconds = time.monotonic() - began
    return Predicted(images=done, failed=failed, done_before=before, seconds=seconds)


def computed_here(job: PartsJob, numbers: Sequence[int]) -> Iterator[Done]:
    """Compute parts in this process; those that another one wrote meanwhile are left out."""
    for number in numbers:
        if job.parts.path(number).exists():
            yield Done(job.parts.length(number), ())
        else:
            yield from job.compute(number)
