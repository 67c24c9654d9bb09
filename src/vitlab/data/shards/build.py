"""Write the index of shards or tables; every sample is read once."""

import hashlib
import os
import shutil
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy

from vitlab.config import to_dict
from vitlab.data.shards.cache import Cache
from vitlab.data.shards.index import ARRAYS, HEADER, IndexHeader
from vitlab.data.shards.labels import LabelColumn
from vitlab.data.shards.samples import Block, Damaged, Files, Sample
from vitlab.data.shards.store import TAR, Store, StoreError
from vitlab.data.shards.tables import TableFacts, scan_table
from vitlab.data.shards.tar import scan_tar
from vitlab.errors import DataError, VitlabError
from vitlab.io.files import staged_folder, write_json

Watch = Callable[[int, int], None]
"""Callback with the number of finished files and their total."""


@dataclass(kw_only=True)
class Scanned:
    """One file, read."""

    blocks: list[Block] = field(default_factory=list)
    facts: TableFacts = field(default_factory=TableFacts)
    damage: str | None = None


def build_index(files: Files, folder: Path, watch: Watch = lambda done, total: None) -> None:
    """Write an index to a folder, which appears complete and replaces an older one."""
    with staged_folder(folder) as staged:
        with _Writer(staged, files) as writer:
            for name, scanned in _scan_all(files, watch):
                writer.add(name, scanned)
            header = writer.finish()
        write_json(staged / HEADER, to_dict(header))
        if folder.exists():
            shutil.rmtree(folder)
        os.replace(staged, folder)


def _scan_all(files: Files, watch: Watch) -> Iterator[tuple[str, Scanned]]:
    """All files in order, of which a few are read at the same time."""
    names, workers = iter(files.names), os.cpu_count() or 1
    with ThreadPoolExecutor(workers) as pool:
        waiting = deque((name, pool.submit(_scan, files, name)) for name in islice(names, workers))
        try:
            for done in range(len(files.names)):
                watch(done, len(files.names))
                name, found = waiting.popleft()
                yield name, found.result()
                waiting += ((name, pool.submit(_scan, files, name)) for name in islice(names, 1))
        finally:
            for _, future in waiting:
                future.cancel()
    watch(len(files.names), len(files.names))


def _scan(files: Files, name: str) -> Scanned:
    """Samples of a file; DataError for content that is not what it should be."""
    scanned = Scanned()
    try:
        if name.endswith(TAR):
            scanned.blocks.append(scan_tar(_local(files.store, name)))
        else:
            for block in scan_table(files.store, name, files.columns, scanned.facts):
                scanned.blocks.append(block)
    except Damaged as damage:
        scanned.blocks += [damage.before] if damage.before is not None else []
        scanned.damage = str(damage)
    except (StoreError, OSError) as error:
        scanned.damage = getattr(error, "strerror", None) or str(error)
    except VitlabError as error:
        raise DataError(f"{files.store.path(name)}: {error}") from error
    return scanned


def _local(store: Store, name: str) -> str:
    """Local file, for a file of a store a new copy."""
    if not store.remote:
        return store.path(name)
    size = store.size(name)
    copy = lambda file: store.copy(name, size, file)  # noqa: E731
    return str(Cache.open().path(f"{store.path(name)} {size}", size, copy, fresh=True))


class _Writer:
    """Arrays that grow file by file."""

    def __init__(self, folder: Path, files: Files) -> None:
        self._files, self._closing = files, ExitStack()
        self._arrays = {
            name: self._closing.enter_context(
                GrowingArray(folder / f"{name}.npy", kind, (2,) if name == "block_rows" else ())
            )
            for name, kind in ARRAYS.items()
        }
        self._folder, self._labels = folder, LabelColumn(files.classes)
        self._digest = hashlib.blake2b(digest_size=16)
        self._samples = self._bytes = self._blocks = 0
        self._counts: dict[str, int] = {}
        self._damaged: dict[str, str] = {}
        self._image: str | None = None

    def __enter__(self) -> "_Writer":
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def add(self, name: str, scanned: Scanned) -> None:
        """Append the samples of a file."""
        where = self._files.store.path(name)
        number = len(self._counts)
        if scanned.facts.classes:
            self._labels.declare(scanned.facts.classes, where)
        if scanned.damage is not None:
            self._damaged[name] = scanned.damage
        self._image = scanned.facts.image or self._image
        for block in scanned.blocks:
            if block.samples:
                self._add_block(number, block)
                self._labels.add([sample.target for sample in block.samples], where)
        self._counts[name] = sum(len(block.samples) for block in scanned.blocks)

    def _add_block(self, number: int, block: Block) -> None:
        columns = dict(zip(Sample._fields, zip(*block.samples, strict=True), strict=True))
        lengths = np.fromiter(map(len, columns["name"]), np.int64)
        names = np.frombuffer(b"".join(columns["name"]), np.uint8)
        for name, values in (
            ("offset", columns["offset"]),
            ("size", columns["size"]),
            ("digest", columns["digest"]),
            ("name_end", self._bytes + lengths.cumsum()),
            ("names", names),
            ("block_end", [self._samples + len(block.samples)]),
            ("block_file", [number]),
            ("block_rows", [block.rows]),
            ("block_size", [block.size]),
        ):
            self._digest.update(self._arrays[name].add(values))
        self._samples += len(block.samples)
        self._bytes += int(lengths.sum())

    def finish(self) -> IndexHeader:
        """Write the labels; return the facts about all samples."""
        names = self._files.names
        if self._samples == 0:
            first = next(iter(self._damaged.items()), None)
            reason = "no images in them" if first is None else f"{first[0]}: {first[1]}"
            raise DataError(f"{self._files.store.path(names[0])} and others: {reason}")
        column = self._labels.finish()
        if column is not None:
            np.save(self._folder / "label.npy", column.values)
            self._digest.update(column.values.tobytes())
        task, labels = (None, ()) if column is None else (column.task, column.names)
        self._digest.update(repr((names, task, labels)).encode(errors="surrogateescape"))
        splits, start = {}, 0
        for split, members in self._files.splits.items():
            end = start + sum(self._counts[name] for name in members)
            splits[split], start = (start, end), end
        columns = dict(self._files.columns) | ({"image": self._image} if self._image else {})
        return IndexHeader(
            files=names,
            samples=self._samples,
            splits=splits,
            task=task,
            labels=labels,
            digest=self._digest.hexdigest(),
            columns=columns,
            damaged=self._damaged,
        )


class GrowingArray:
    """A `.npy` file that is written piece by piece."""

    def __init__(self, path: Path, kind: Any, row: tuple[int, ...] = ()) -> None:
        self._kind, self._row, self._count = np.dtype(kind), row, 0
        self._file = path.open("wb")
        self._write_header()

    def __enter__(self) -> "GrowingArray":
        return self

    def __exit__(self, *_: object) -> None:
        """Write the number of rows into the header, for which NumPy leaves room."""
        self._file.seek(0)
        self._write_header()
        self._file.close()

    def add(self, values: Any) -> bytes:
        """Append rows; return their bytes."""
        content = np.asarray(values, self._kind).reshape(-1, *self._row)
        self._count += len(content)
        self._file.write(content.tobytes())
        return content.tobytes()

    def _write_header(self) -> None:
        description = npy.dtype_to_descr(self._kind)
        shape = (self._count, *self._row)
        header = {"descr": description, "fortran_order": False, "shape": shape}
        npy.write_array_header_1_0(self._file, header)
