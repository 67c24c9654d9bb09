"""Samples of shards by number: an index of places in files, as arrays that are mapped into memory.

A folder of NumPy arrays and `index.json`; processes share the pages that they touch. A sample is
`size` bytes at `offset` of a block. A block is a file (tar, Arrow), or the images of some row
groups of a Parquet file, one after the other. Imports no torch.
"""

import hashlib
import logging
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from vitlab.config import from_dict, parse_json
from vitlab.data.shards.cache import Cache
from vitlab.data.shards.store import Store
from vitlab.errors import DataError, InputError, VitlabError, one_line
from vitlab.images.open import StoredImage
from vitlab.task import Task

FORMAT_VERSION = 1
HEADER = "index.json"
ARRAYS = {
    "offset": np.int64,
    "size": np.int32,
    "digest": np.uint64,
    "name_end": np.int64,
    "names": np.uint8,
    "block_end": np.int64,
    "block_file": np.int32,
    "block_rows": np.int32,
    "block_size": np.int64,
}
"""Arrays and their types; `label` may be of several."""
LABELS: Mapping[Task, Any] = {
    "single-label": np.int32,
    "multi-label": np.bool_,
    "regression": np.float32,
}
UNAVAILABLE = " cannot be read: "
"""Text between the name of a block and the reason for which none of its samples can be read."""
OPEN_FILES = 64
"""Files of blocks that are kept open."""
REST = 300.0
"""Seconds until a block that could not be read is tried again."""
UNLABELLED = -1
"""Class of a sample without one."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexHeader:
    """Facts about an index that are not arrays: `index.json`."""

    files: tuple[str, ...]
    """Names of the files, relative to the root of the store."""
    samples: int
    splits: dict[str, tuple[int, int]]
    """First sample of each split, and the one behind its last."""
    task: Task | None
    """None: the samples have no labels."""
    labels: tuple[str, ...]
    """Names of the classes, labels or values."""
    digest: str
    """Hash of all samples, names and labels in their order."""
    columns: dict[str, str] = field(default_factory=dict)
    """Columns of tables by their use: `image`, `label`."""
    damaged: dict[str, str] = field(default_factory=dict)
    """Files that could not be read to their end, with the reason."""
    format_version: int = FORMAT_VERSION


class OpenFile:
    """A file that is read at any place by several threads, and closed with its last user."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._file: BinaryIO = open(path, "rb", buffering=0)  # noqa: SIM115  # closed by __del__
        self._lock = threading.Lock()

    def read(self, start: int, size: int) -> bytes:
        """Bytes from `start` on; fewer at the end of the file."""
        if hasattr(os, "pread"):
            return os.pread(self._file.fileno(), size, start)
        with self._lock:
            self._file.seek(start)
            return self._file.read(size)

    @property
    def deleted(self) -> bool:
        """True if the file has no name any more; its space is free when it is closed."""
        return os.fstat(self._file.fileno()).st_nlink == 0

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            self._file.close()


class Index:
    """Samples by number, in the order of the files; safe for threads."""

    offset: NDArray[np.int64]
    size: NDArray[np.int32]
    digest: NDArray[np.uint64]
    name_end: NDArray[np.int64]
    names: NDArray[np.uint8]
    block_end: NDArray[np.int64]
    block_file: NDArray[np.int32]
    block_rows: NDArray[np.int32]
    """First row group of a block in its file, and the one behind its last; 0, 0: the whole file."""
    block_size: NDArray[np.int64]

    def __init__(self, folder: Path, store: Store) -> None:
        self.folder = folder
        self.store = store
        self.header = _read_header(folder)
        for name, kind in ARRAYS.items():
            setattr(self, name, self._array(name, kind))
        self._check()
        self._lock = threading.Lock()
        self._open: OrderedDict[int, OpenFile] = OrderedDict()
        self._failed: dict[int, tuple[str, float]] = {}

    def to_json(self) -> dict[str, str]:
        """Place of the index, from which another process opens it."""
        return {"folder": str(self.folder.absolute()), "root": self.store.root}

    @classmethod
    def from_json(cls, data: Mapping[str, str]) -> "Index":
        """Index from the output of `to_json`."""
        return cls(Path(data["folder"]), Store(data["root"]))

    def __len__(self) -> int:
        return self.header.samples

    @cached_property
    def label(self) -> NDArray[Any]:
        """Labels of all samples: class indices, or a row for each; raises if there are none."""
        if self.header.task is None:
            raise DataError(f"{self.store.root}: no labels; valid: shards or tables with labels")
        return self._array("label", LABELS[self.header.task])

    def name(self, number: int) -> str:
        """Name of a sample: its file, and its name in the file."""
        start = int(self.name_end[number - 1]) if number else 0
        inner = bytes(self.names[start : self.name_end[number]]).decode(errors="surrogateescape")
        return f"{self.file_of(self.block(number))}/{inner}"

    def inner_names(self, numbers: NDArray[np.int64]) -> list[bytes]:
        """Names of samples in their files."""
        ends = self.name_end[numbers]
        starts = np.where(numbers > 0, self.name_end[numbers - 1], 0)
        names = self.names
        pairs = zip(starts.tolist(), ends.tolist(), strict=True)
        return [names[start:end].tobytes() for start, end in pairs]

    def block(self, number: int) -> int:
        """Block of a sample."""
        return int(np.searchsorted(self.block_end, number, side="right"))

    def file_of(self, block: int) -> str:
        """Name of the file of a block."""
        return self.header.files[int(self.block_file[block])]

    def block_name(self, block: int) -> str:
        """Name of a block: its file, with the row groups of a part."""
        first, end = self.block_rows[block].tolist()
        rows = f", row groups {first} to {end - 1}," if end else ""
        return f"{self.file_of(block)}{rows}"

    def bounds(self, block: int) -> tuple[int, int]:
        """First sample of a block, and the one behind its last."""
        return int(self.block_end[block - 1]) if block else 0, int(self.block_end[block])

    def read(self, number: int) -> bytes:
        """Content of a sample; raises InputError with only the reason if it cannot be read."""
        size, block = int(self.size[number]), self.block(number)
        if size == 0:
            raise InputError("an empty file")
        offset = int(self.offset[number])
        content = self._file(block).read(offset, size)
        if len(content) < size:
            raise InputError(f"truncated: {self.file_of(block)} ends before byte {offset + size}")
        if content_digest(content) != self.digest[number]:
            raise InputError(
                "other bytes than the index has; if the shards are new: vitlab data index --force"
            )
        return content

    def image(self, number: int) -> StoredImage:
        """Sample that is read when it is opened."""
        return StoredImage(self.name(number), partial(self.read, number))

    def fetch(self, block: int) -> None:
        """Make a local copy of a block, if it needs one; failures are raised when it is read."""
        try:
            self._path(block)
        except (VitlabError, OSError) as error:
            log.debug("%s: %s", self.file_of(block), error)

    @property
    def copies(self) -> bool:
        """True if blocks are read from local copies."""
        return self.store.remote or bool((self.block_rows[:, 1] > 0).any())

    def _file(self, block: int) -> OpenFile:
        with self._lock:
            if block in self._open:
                self._open.move_to_end(block)
                return self._open[block]
        reason, until = self._failed.get(block, ("", 0.0))
        if time.monotonic() > until:
            try:
                return self._remember(block, OpenFile(self._path(block)))
            except (VitlabError, OSError) as error:
                reason = getattr(error, "strerror", None) or one_line(error)
                self._failed[block] = reason, time.monotonic() + REST
        raise InputError(f"{self.block_name(block)}{UNAVAILABLE}{reason}")

    def _remember(self, block: int, file: OpenFile) -> OpenFile:
        with self._lock:
            for other in [number for number, each in self._open.items() if each.deleted]:
                del self._open[other]
            while len(self._open) >= OPEN_FILES:
                self._open.popitem(last=False)
            self._open[block] = file
        return file

    def _path(self, block: int) -> Path | str:
        """Local file of a block."""
        name, size = self.file_of(block), int(self.block_size[block])
        first, last = self.block_rows[block].tolist()
        if last:
            from vitlab.data.shards.tables import write_images

            column = self.header.columns["image"]
            return self._cache.path(
                f"{self.header.digest} {self.store.path(name)} {first} {last}",
                size,
                lambda file: write_images(self.store, name, column, range(first, last), file),
            )
        if not self.store.remote:
            return self.store.path(name)
        return self._cache.path(
            f"{self.store.path(name)} {size}",
            size,
            lambda file: self.store.copy(name, size, file),
        )

    @cached_property
    def _cache(self) -> Cache:
        return Cache.open()

    def _array(self, name: str, kind: Any) -> NDArray[Any]:
        path = self.folder / f"{name}.npy"
        try:
            # Copy on write: torch takes arrays only if they could be written to.
            array = np.load(path, mmap_mode="c", allow_pickle=False)
        except (OSError, ValueError, EOFError, SyntaxError) as error:
            raise _damaged(self.folder, f"{path.name}: {one_line(error)}") from error
        if array.dtype != kind:
            raise _damaged(self.folder, f"{path.name} holds {array.dtype}, not {np.dtype(kind)}")
        return array.view(np.ndarray)

    def _check(self) -> None:
        """Raise for arrays that do not fit together."""
        samples, blocks = len(self), len(self.block_end)
        shapes = dict.fromkeys(("offset", "size", "digest", "name_end"), (samples,))
        shapes |= dict.fromkeys(("block_end", "block_file", "block_size"), (blocks,))
        for name, shape in {**shapes, "block_rows": (blocks, 2)}.items():
            if getattr(self, name).shape != shape:
                raise _damaged(self.folder, f"{name} has shape {getattr(self, name).shape}")
        ends = [0, *self.block_end.tolist(), samples]
        files = self.block_file
        if sorted(ends) != ends or ends[-2] != samples:
            raise _damaged(self.folder, "its blocks do not hold its samples")
        if blocks and not 0 <= files.min() <= files.max() < len(self.header.files):
            raise _damaged(self.folder, "a block of a file that it does not list")
        if samples and int(self.name_end[-1]) != len(self.names):
            raise _damaged(self.folder, "names that do not end with the last sample")


def content_digest(content: bytes | memoryview) -> int:
    """Hash of a sample's content, by which copies and damage are found."""
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")


def _read_header(folder: Path) -> IndexHeader:
    try:
        content = parse_json((folder / HEADER).read_bytes())
        version = content.get("format_version")
        if version != FORMAT_VERSION:
            raise ValueError(f"format_version {version}; valid: {FORMAT_VERSION}")
        header = from_dict(IndexHeader, content)
    except (OSError, ValueError, AttributeError) as error:
        raise _damaged(folder, one_line(error)) from error
    bounds = [number for pair in header.splits.values() for number in pair]
    if sorted([0, *bounds, header.samples]) != [0, *bounds, header.samples]:
        raise _damaged(folder, f"splits {header.splits} of {header.samples} samples")
    return header


def _damaged(folder: Path, reason: str) -> DataError:
    return DataError(f"{folder}: a damaged index ({reason}); valid: vitlab data index --force")


def shard_names(names: Sequence[str]) -> str:
    """Text of some names of files."""
    more = f" and {len(names) - 3:,} more" if len(names) > 3 else ""
    return f"{', '.join(names[:3])}{more}"
