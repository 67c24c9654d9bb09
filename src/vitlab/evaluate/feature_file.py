"""Files of features: one row an image, written as they come and read back a piece at a time."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from vitlab.config import from_dict, to_dict
from vitlab.errors import DataError, FileError, VitlabError
from vitlab.models.readout import Kind
from vitlab.preprocessing import Preprocessing

FORMAT_VERSION = 1
SUFFIXES = (".npz", ".parquet")
Rows = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True, slots=True)
class FeatureInfo:
    """Where features come from: enough to compute more of the same, and to refuse others."""

    model: str
    """A run, a bundle or a weight file, by its absolute path."""
    weights: str
    """Digest of the model without its head: `vitlab.weights.fingerprint`."""
    kind: Kind
    layer: int | None
    """None: what comes out of the last LayerNorm; else the number of a block, from 0."""
    preprocessing: Preprocessing
    shape: tuple[int, ...]
    """Of the features of one image: width, or rows, columns and width."""
    folder: str
    """Where relative paths of images begin."""
    format_version: int = FORMAT_VERSION

    def to_json(self) -> dict[str, Any]:
        """The fields as JSON-able values."""
        return to_dict(self)


@runtime_checkable
class FeatureWriter(Protocol):
    """Takes features as they are computed."""

    def add(self, features: Rows, paths: Sequence[str], labels: Sequence[str]) -> None:
        """Write the rows of some images; the label of a class that nobody knows is empty."""


@runtime_checkable
class FeatureReader(Protocol):
    """Features with the images that they belong to."""

    @property
    def info(self) -> FeatureInfo:
        """Where they come from."""

    @property
    def count(self) -> int:
        """How many images."""

    def chunks(self, rows: int) -> Iterator[Rows]:
        """All features in order, at most `rows` images at once."""

    def names(self, numbers: Sequence[int]) -> list[tuple[str, str]]:
        """Path and label of the images of these row numbers."""


def check_suffix(path: Path) -> None:
    """Refuse a name that says no format."""
    if path.suffix.lower() not in SUFFIXES:
        raise FileError(f"{path}: ending {path.suffix!r}; valid: {', '.join(SUFFIXES)}")


def writing_features(path: Path, info: FeatureInfo) -> AbstractContextManager[FeatureWriter]:
    """A writer whose file appears at the end, whole, or not at all."""
    check_suffix(path)
    if path.suffix.lower() == ".npz":
        from vitlab.evaluate.feature_npz import writing_npz

        return writing_npz(path, info)
    from vitlab.evaluate.feature_parquet import writing_parquet

    return writing_parquet(path, info)


@contextmanager
def reading_features(path: Path) -> Iterator[FeatureReader]:
    """What `vitlab features` wrote; anything else is one line that says what it is."""
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
        from vitlab.evaluate.feature_npz import reading_npz

        return reading_npz(path)
    from vitlab.evaluate.feature_parquet import reading_parquet

    return reading_parquet(path)


class FeatureFileError(VitlabError):
    """A file that holds no features of ours, or damaged ones; the message leaves out its name."""


def info_from(data: Any) -> FeatureInfo:
    """What `FeatureInfo.to_json` described."""
    version = data.get("format_version") if isinstance(data, dict) else None
    if version != FORMAT_VERSION:
        raise FeatureFileError(f"metadata of version {version!r}; valid: {FORMAT_VERSION}")
    try:
        return from_dict(FeatureInfo, data)
    except VitlabError as error:
        raise FeatureFileError(f"metadata that is not ours ({error})") from error
