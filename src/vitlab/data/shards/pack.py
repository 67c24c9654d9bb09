"""Pack a folder of images, or those of a CSV, into tar shards that other libraries read too."""

import io
import json
import os
import tarfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch

from vitlab.data.images import FileSet, task_of
from vitlab.data.order import generator
from vitlab.data.shards.layout import CLASSES, TEST, TRAIN, find_layout, write_index
from vitlab.data.shards.tar import CLASS, FIELDS, encoded_name, split_name
from vitlab.data.sources.archive import is_archive, unpack
from vitlab.data.sources.folder import (
    class_folders,
    has_splits,
    image_files,
    read_classes,
    subfolders,
)
from vitlab.data.sources.table import is_table, read_table
from vitlab.errors import DataError, FileError
from vitlab.io.files import check_parent, replacing, staged_folder

IMAGES, MEGABYTES = 10_000, 256
"""Most images, and about the most megabytes, of a shard."""
Watch = Callable[[int, int], None]
"""Callback with the number of packed images and their total."""


@dataclass(frozen=True, kw_only=True)
class Packed:
    """Result of packing."""

    folder: Path
    images: int
    shards: int
    bytes: int
    """Size of all shards."""
    skipped: dict[str, str]
    """Files that could not be opened, with the reason."""


class Origin(NamedTuple):
    """Images to pack, split by split."""

    splits: Mapping[str, FileSet]
    """`""` if there is only one."""
    folders: Mapping[str, Path]
    """Folder of each split, below which its images are named."""
    labels: tuple[str, ...]
    """Names of the classes, labels or values; empty without labels."""


def pack(
    data: Path,
    out: Path,
    *,
    images: int = IMAGES,
    megabytes: float = MEGABYTES,
    seed: int = 0,
    watch: Watch = lambda done, total: None,
) -> Packed:
    """Write shards of shuffled images, and their index; the folder appears when it is complete."""
    if images < 1 or megabytes <= 0:
        raise DataError(f"shards of {images} images, {megabytes} MB; valid: from 1, above 0")
    check_parent(out)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise FileError(f"{out} exists; valid: a new folder")
    origin = _origin(data)
    total, done = sum(map(len, origin.splits.values())), 0
    skipped: dict[str, str] = {}
    with staged_folder(out) as staged:
        for split, files in origin.splits.items():
            writer = _Writer(staged / split, origin, split, skipped)
            for members in _shards(files, split, images, megabytes, seed):
                watch(done, total)
                writer.write(members)
                done += len(members)
        watch(done, total)
        if out.exists():
            out.rmdir()
        os.replace(staged, out)
    layout = find_layout(str(out))
    if layout is None:
        raise DataError(f"none of {total} images could be opened; {next(iter(skipped.items()))}")
    write_index(layout)
    paths = [out / name for name in layout.files.names]
    return Packed(
        folder=out,
        images=total - len(skipped),
        shards=len(paths),
        bytes=sum(path.stat().st_size for path in paths),
        skipped=skipped,
    )


def _origin(data: Path) -> Origin:
    if is_table(data):
        targets, splits = read_table(data)
        folder = data if data.is_dir() else data.parent
        return Origin(splits, dict.fromkeys(splits, folder), targets.labels)
    root = unpack(data) if is_archive(data) else data
    if not root.is_dir():
        raise DataError(f"{data} is not a folder; valid: a folder, a zip or tar file, or a CSV")
    if find_layout(str(root)) is not None:
        raise DataError(f"{data} holds shards or tables; valid: a folder of images")
    if not has_splits(root):
        return _folder_origin({"": root})
    tests = [name for name in TEST if (root / name).is_dir()]
    return _folder_origin({name: root / name for name in (TRAIN, *tests[:1])})


def _folder_origin(folders: Mapping[str, Path]) -> Origin:
    first = next(iter(folders.values()))
    if not subfolders(first):
        splits = {split: _unlabelled(folder) for split, folder in folders.items()}
        return Origin(splits, folders, ())
    classes = class_folders(first)
    found = {split: class_folders(folder, least=1) for split, folder in folders.items()}
    for split, own in found.items():
        strange = sorted(set(own) - set(classes))
        if strange:
            raise DataError(
                f"{folders[split]} holds the class {strange[0]!r}, which is not trained"
            )
    splits = {
        split: read_classes({name: own.get(name) for name in classes})
        for split, own in found.items()
    }
    return Origin(splits, folders, tuple(classes))


def _unlabelled(folder: Path) -> FileSet:
    paths = tuple(map(Path, sorted(image_files(folder))))
    if not paths:
        raise DataError(f"{folder} holds no image files")
    return FileSet(paths=paths, labels=torch.zeros(len(paths), dtype=torch.int64))


def _shards(
    files: FileSet, split: str, images: int, megabytes: float, seed: int
) -> Iterator[list[int]]:
    """Images of each shard: shuffled, equally many, within the limits on average."""
    size = sum(_size(path) for path in files.paths)
    number = max(-(-len(files) // images), -int(-size // int(megabytes * 1e6)), 1)
    order = torch.randperm(len(files), generator=generator(seed, "pack", split))
    yield from (part.tolist() for part in order.tensor_split(min(number, len(files))))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


class _Writer:
    """Shards of one split."""

    def __init__(self, folder: Path, origin: Origin, split: str, skipped: dict[str, str]) -> None:
        folder.mkdir(exist_ok=True)
        self._folder, self._origin, self._skipped = folder, origin, skipped
        self._files, self._count = origin.splits[split], 0
        self._names = [_name(path, origin.folders[split]) for path in self._files.paths]
        self._stems = Counter(name.rpartition(".")[0] for name in self._names)
        for place in (folder, folder.parent) if split else (folder,):
            if origin.labels:
                text = "".join(f"{' '.join(label.split())}\n" for label in origin.labels)
                (place / CLASSES).write_text(text, encoding="utf-8")

    def write(self, members: list[int]) -> None:
        """Write the next shard."""
        path = self._folder / f"{self._count:05}.tar"
        self._count += 1
        with (
            replacing(path) as file,
            tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar,
        ):
            for number in members:
                self._add(tar, number)

    def _add(self, tar: tarfile.TarFile, number: int) -> None:
        path, name = self._files.paths[number], self._names[number]
        try:
            content = path.read_bytes()
        except OSError as error:
            self._skipped[str(path)] = error.strerror or type(error).__name__
            return
        alone = self._stems[name.rpartition(".")[0]] == 1
        stored = encoded_name(name, alone=alone)
        _put(tar, stored, content)
        if self._origin.labels:
            ending, text = self._label(number)
            _put(tar, split_name(stored)[0] + ending, text.encode())

    def _label(self, number: int) -> tuple[str, str]:
        """Ending and content of the file with the label."""
        labels, names = self._files.labels, self._origin.labels
        found: Any = labels[number].tolist()
        match task_of(labels):
            case "single-label":
                return CLASS, str(found)
            case "multi-label":
                given = [name for name, mark in zip(names, found, strict=True) if mark]
                return FIELDS, json.dumps({"labels": given})
            case _:
                return FIELDS, json.dumps({"value": found})


def _name(path: Path, folder: Path) -> str:
    """Name of a file below a folder, with slashes; outside of it, its last part."""
    inner = os.path.relpath(path, folder).replace(os.sep, "/")
    return path.name if inner.startswith("../") else inner


def _put(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    """Add a file; without times and owners, the same images make the same shards."""
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(content), 0o644
    tar.addfile(member, io.BytesIO(content))
