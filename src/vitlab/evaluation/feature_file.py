"""Feature files: one row per image, written as computed and read back in chunks."""

import json
import math
import shutil
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any, Protocol, runtime_checkable

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from vitlab.config import from_dict, parse_json, to_dict
from vitlab.errors import DataError, FileError, VitlabError, damage_as
from vitlab.images.preprocessing import Preprocessing
from vitlab.io.files import replacing
from vitlab.models.features import Kind

FORMAT_VERSION = 1
SUFFIXES = (".npz", ".parquet")
Rows = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True, slots=True)
class FeatureInfo:
    """Origin of features: enough to compute more of the same, and to reject others."""

    model: str
    """A run, a bundle or a weight file, by its absolute path."""
    weights: str
    """Digest of the model without its head: `vitlab.weights.source`."""
    kind: Kind
    layer: int | None
    """None: the output of the last LayerNorm; else the index of a block, from 0."""
    preprocessing: Preprocessing
    shape: tuple[int, ...]
    """Shape of the features of one image: width, or rows, columns and width."""
    folder: str
    """Base folder of relative image paths."""
    format_version: int = FORMAT_VERSION

    def to_json(self) -> dict[str, Any]:
        """Fields as JSON-serialisable values."""
        return to_dict(self)


@runtime_checkable
class FeatureWriter(Protocol):
    """Writer that takes features as they are computed."""

    def add(self, features: Rows, paths: Sequence[str], labels: Sequence[str]) -> None:
        """Write the rows of some images; the label of an unknown class is empty."""


@runtime_checkable
class FeatureReader(Protocol):
    """Features with the images that they belong to."""

    @property
    def info(self) -> FeatureInfo:
        """Origin of the features."""

    @property
    def count(self) -> int:
        """Number of images."""

    def chunks(self, rows: int) -> Iterator[Rows]:
        """All features in order, at most `rows` images at once."""

    def names(self, numbers: Sequence[int]) -> list[tuple[str, str]]:
        """Path and label of the images of these row numbers."""


def check_suffix(path: Path) -> None:
    """Raise for a name without a known format."""
    if path.suffix.lower() not in SUFFIXES:
        raise FileError(f"{path}: ending {path.suffix!r}; valid: {', '.join(SUFFIXES)}")


def writing_features(path: Path, info: FeatureInfo) -> AbstractContextManager[FeatureWriter]:
    """Writer whose file appears at the end, complete, or not at all."""
    check_suffix(path)
    if path.suffix.lower() == ".npz":
        return writing_npz(path, info)
    from vitlab.evaluation.feature_parquet import writing_parquet

    return writing_parquet(path, info)


@contextmanager
def reading_features(path: Path) -> Iterator[FeatureReader]:
    """Reader of a file from `vitlab features`; raises one line for any other file."""
    check_suffix(path)
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    try:
        with _reading(path) as reader:
            yield reader
    except FeatureFileError as error:
        raise DataError(f"{path}: {error}") from error.__cause__


def _reading(path: Path) -> AbstractContextManager[FeatureReader]:
    if path.suffix.lower() == ".npz":
        return reading_npz(path)
    from vitlab.evaluation.feature_parquet import reading_parquet

    return reading_parquet(path)


class FeatureFileError(VitlabError):
    """Error for a file without valid features; the message leaves out its name."""


def info_from(data: Any) -> FeatureInfo:
    """Info from the output of `FeatureInfo.to_json`."""
    version = data.get("format_version") if isinstance(data, dict) else None
    if version != FORMAT_VERSION:
        raise FeatureFileError(f"metadata of version {version!r}; valid: {FORMAT_VERSION}")
    try:
        return from_dict(FeatureInfo, data)
    except VitlabError as error:
        raise FeatureFileError(f"metadata that is not ours ({error})") from error


# Features as NumPy's `.npz`: arrays `features`, `paths`, `labels` and `metadata` (JSON).
#
# `numpy.load(..., allow_pickle=False)` reads it. Written and read here in chunks, so that a million
# images need no memory for all of them.

FEATURES, PATHS, LABELS, METADATA = "features", "paths", "labels", "metadata"
NAMES_AT_ONCE = 1 << 16
MOST_METADATA = 1 << 20
"""Maximum number of characters; longer metadata is not from this package."""
LEVEL = 1
"""NumPy stores every character in four bytes, mostly zeros: the least compression removes them."""


class NpzWriter:
    """Keep names in memory and features in an unnamed file, until their number is known."""

    def __init__(self, scratch: IO[bytes], shape: tuple[int, ...]) -> None:
        self._scratch = scratch
        self._shape = shape
        self._paths: list[str] = []
        self._labels: list[str] = []

    def add(self, features: Rows, paths: Sequence[str], labels: Sequence[str]) -> None:
        """Keep the rows of some images."""
        if features.shape != (len(paths), *self._shape) or len(labels) != len(paths):
            raise ValueError(f"{features.shape} features of {len(paths)} images")
        self._scratch.write(np.ascontiguousarray(features, dtype="<f4").data)
        self._paths += paths
        self._labels += labels

    def save(self, file: IO[bytes], info: FeatureInfo) -> None:
        """Write everything as one archive."""
        with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
            _write_strings(archive, METADATA, [json.dumps(info.to_json())], shape=())
            self._scratch.seek(0)
            # A ZipInfo does not have today's date: the same features make the same file.
            entry = zipfile.ZipInfo(f"{FEATURES}.npy")
            with archive.open(entry, "w", force_zip64=True) as member:
                _write_header(member, "<f4", (len(self._paths), *self._shape))
                shutil.copyfileobj(self._scratch, member, 1 << 22)
            _write_strings(archive, PATHS, self._paths)
            _write_strings(archive, LABELS, self._labels)


@contextmanager
def writing_npz(path: Path, info: FeatureInfo) -> Iterator[NpzWriter]:
    """Writer whose file appears at the end."""
    with _scratch(path) as scratch:
        writer = NpzWriter(scratch, info.shape)
        yield writer
        with replacing(path) as file:
            writer.save(file, info)


def _scratch(path: Path) -> IO[bytes]:
    """Unnamed file on the disk of `path`; it is removed with its owner."""
    try:
        return tempfile.TemporaryFile(dir=path.absolute().parent)
    except OSError as error:
        raise FileError(f"{path}: cannot be written ({error.strerror})") from error


def _write_header(member: Any, kind: str, shape: tuple[int, ...]) -> None:
    header = {"descr": kind, "fortran_order": False, "shape": shape}
    npy.write_array_header_1_0(member, header)


def _write_strings(
    archive: zipfile.ZipFile, name: str, texts: Sequence[str], shape: tuple[int, ...] | None = None
) -> None:
    kind = f"<U{max(map(len, texts), default=1) or 1}"
    entry = zipfile.ZipInfo(f"{name}.npy")
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry._compresslevel = LEVEL  # type: ignore[attr-defined]  # public from Python 3.13 on
    with archive.open(entry, "w", force_zip64=True) as member:
        _write_header(member, kind, (len(texts),) if shape is None else shape)
        for start in range(0, len(texts), NAMES_AT_ONCE):
            member.write(np.array(texts[start : start + NAMES_AT_ONCE], kind).tobytes())


@dataclass(frozen=True, kw_only=True, slots=True)
class _Header:
    shape: tuple[int, ...]
    kind: np.dtype[Any]


class NpzReader:
    """An open feature archive."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self._archive = archive
        self.info = info_from(_metadata(archive))
        shape = self._header(FEATURES, "f").shape
        counts = {name: self._header(name, "U").shape for name in (PATHS, LABELS)}
        self.count = shape[0] if shape else 0
        if shape[1:] != self.info.shape or any(c != shape[:1] for c in counts.values()):
            raise FeatureFileError(
                f"features {shape}, paths {counts[PATHS]} and labels {counts[LABELS]} do not go "
                f"together with features of {self.info.shape} an image"
            )

    def chunks(self, rows: int) -> Iterator[Rows]:
        """All features in order, at most `rows` images at once."""
        for chunk in _pieces(self._archive, FEATURES, rows):
            yield chunk.astype(np.float32, copy=False)

    def names(self, numbers: Sequence[int]) -> list[tuple[str, str]]:
        """Path and label of the images of these row numbers."""
        paths, labels = (_picked(self._archive, name, numbers) for name in (PATHS, LABELS))
        return [(paths[number], labels[number]) for number in numbers]

    def _header(self, name: str, kind: str) -> _Header:
        with _opened(self._archive, name) as member:
            header = _read_header(member)
        if header.kind.kind != kind:
            raise FeatureFileError(f"array {name!r} of {header.kind}")
        return header


@contextmanager
def reading_npz(path: Path) -> Iterator[NpzReader]:
    """Reader of a feature archive; raises `FeatureFileError` for any other file."""
    with _damage():
        archive = zipfile.ZipFile(path)
    with archive:
        yield NpzReader(archive)


_damage = partial(damage_as, FeatureFileError, "not an .npz, or a damaged one")
"""Error conversion for calls of NumPy and `zipfile`."""


@contextmanager
def _opened(archive: zipfile.ZipFile, name: str) -> Iterator[zipfile.ZipExtFile]:
    if f"{name}.npy" not in archive.namelist():
        raise FeatureFileError(f"no array {name!r}; valid: a file that vitlab features wrote")
    with _damage():
        member = archive.open(f"{name}.npy")
        assert isinstance(member, zipfile.ZipExtFile)  # always true in reading mode
    with member:
        yield member


def _read_header(member: zipfile.ZipExtFile) -> _Header:
    with damage_as(FeatureFileError, "a damaged array"):
        version = npy.read_magic(member)
        read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, fortran, kind = read(member)
    if min(shape, default=0) < 0 or not kind.itemsize:
        raise FeatureFileError(f"a damaged array (shape {shape} of {kind})")
    if kind.hasobject or fortran:
        raise FeatureFileError("an array of pickled objects or by columns; valid: as we wrote it")
    return _Header(shape=shape, kind=kind)


def _pieces(archive: zipfile.ZipFile, name: str, rows: int) -> Iterator[NDArray[Any]]:
    """Array in order, at most `rows` of its rows at once."""
    with _opened(archive, name) as member:
        header = _read_header(member)
        width = math.prod(header.shape[1:])
        for start in range(0, header.shape[0], rows):
            count = min(rows, header.shape[0] - start)
            values = _values(member, count * width, header.kind)
            yield values.reshape(count, *header.shape[1:])


def _values(member: zipfile.ZipExtFile, count: int, kind: np.dtype[Any]) -> NDArray[Any]:
    """Next values of an array."""
    with _damage():
        content = member.read(count * kind.itemsize)
        if len(content) < count * kind.itemsize:
            raise EOFError("it ends too early")
        return np.frombuffer(content, kind)


def _picked(archive: zipfile.ZipFile, name: str, numbers: Sequence[int]) -> dict[int, str]:
    """Entries at these indices; the rest is skipped."""
    wanted, found, start = sorted(set(numbers)), {}, 0
    for piece in _pieces(archive, name, NAMES_AT_ONCE):
        for number in wanted:
            if start <= number < start + len(piece):
                with _damage():
                    found[number] = str(piece[number - start])
        start += len(piece)
    return found


def _metadata(archive: zipfile.ZipFile) -> Any:
    with _opened(archive, METADATA) as member:
        header = _read_header(member)
        if header.shape != () or header.kind.kind != "U" or header.kind.itemsize > MOST_METADATA:
            raise FeatureFileError("metadata that is not ours")
        content = _values(member, 1, header.kind)
    try:
        return parse_json(str(content[0]))
    except ValueError as error:
        raise FeatureFileError("metadata that is not JSON") from error
