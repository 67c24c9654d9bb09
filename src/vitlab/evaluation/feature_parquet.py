"""Features as Parquet: columns `path`, `label` and `features`; metadata under the key `vitlab`."""

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from vitlab.config import parse_json
from vitlab.errors import MissingExtra, damage_as
from vitlab.evaluation.feature_file import FeatureFileError, FeatureInfo, Rows, info_from
from vitlab.io.files import replacing

KEY = b"vitlab"
GROUP = 1 << 14
"""Number of images in a row group."""
COLUMNS = ("path", "label", "features")


class ParquetWriter:
    """Write a row group whenever enough images have arrived."""

    def __init__(self, file: Any, info: FeatureInfo) -> None:
        arrow, parquet = _pyarrow()
        self._arrow = arrow
        self._width = math.prod(info.shape)
        self._schema = arrow.schema(
            [
                ("path", arrow.string()),
                ("label", arrow.string()),
                ("features", arrow.list_(arrow.float32(), self._width)),
            ],
            metadata={KEY: json.dumps(info.to_json()).encode()},
        )
        # Floats of a network do not repeat: a dictionary of them would only cost space.
        self._writer = parquet.ParquetWriter(
            file,
            self._schema,
            compression="zstd",
            use_dictionary=["label"],
            write_page_checksum=True,
        )
        self._waiting: list[Any] = []

    def add(self, features: Rows, paths: Sequence[str], labels: Sequence[str]) -> None:
        """Keep the rows of some images."""
        arrow = self._arrow
        flat = arrow.array(np.ascontiguousarray(features, np.float32).reshape(-1))
        columns = [
            arrow.array(list(map(_text, paths)), arrow.string()),
            arrow.array([_text(label) or None for label in labels], arrow.string()),
            arrow.FixedSizeListArray.from_arrays(flat, self._width),
        ]
        self._waiting.append(arrow.RecordBatch.from_arrays(columns, schema=self._schema))
        if sum(batch.num_rows for batch in self._waiting) >= GROUP:
            self._flush()

    def close(self) -> None:
        """Write the rest, and the end of the file."""
        self._flush()
        self._writer.close()

    def _flush(self) -> None:
        table = self._arrow.Table.from_batches(self._waiting, schema=self._schema)
        if table.num_rows:
            self._writer.write_table(table, row_group_size=GROUP)
        self._waiting = []


@contextmanager
def writing_parquet(path: Path, info: FeatureInfo) -> Iterator[ParquetWriter]:
    """Writer whose file appears at the end."""
    _pyarrow()
    # Closed in any case: pyarrow would otherwise write its footer to a file that is gone.
    with replacing(path) as file, closing(ParquetWriter(file, info)) as writer:
        yield writer


class ParquetReader:
    """An open feature file."""

    def __init__(self, file: Any) -> None:
        self._file = file
        with _damage():
            schema, self.count = file.schema_arrow, int(file.metadata.num_rows)
            metadata, names = (schema.metadata or {}).get(KEY), schema.names
        missing = [name for name in COLUMNS if name not in names]
        if metadata is None or missing:
            what = f"no column {missing[0]!r}" if missing else "no metadata of vitlab"
            raise FeatureFileError(f"{what}; valid: a file that vitlab features wrote")
        try:
            content = parse_json(metadata)
        except ValueError as error:
            raise FeatureFileError("metadata that is not JSON") from error
        self.info = info_from(content)

    def chunks(self, rows: int) -> Iterator[Rows]:
        """All features in order, at most `rows` images at once."""
        for count, flat in self._batches(rows):
            if len(flat) != count * math.prod(self.info.shape):
                raise FeatureFileError(f"rows that are not features of {self.info.shape}")
            yield flat.reshape(count, *self.info.shape)

    def _batches(self, rows: int) -> Iterator[tuple[int, Rows]]:
        """Number of images and all their values."""
        with _damage():
            for batch in self._file.iter_batches(rows, columns=["features"]):
                flat = batch.column(0).flatten().to_numpy(zero_copy_only=False)
                yield batch.num_rows, flat.astype(np.float32, copy=False)

    def names(self, numbers: Sequence[int]) -> list[tuple[str, str]]:
        """Path and label of the images of these row numbers."""
        arrow, _ = _pyarrow()
        rows = arrow.array(list(numbers), arrow.int64())
        with _damage():
            table = self._file.read(columns=["path", "label"])
            found = [(row["path"], row["label"] or "") for row in table.take(rows).to_pylist()]
        if not all(isinstance(text, str) for pair in found for text in pair):
            raise FeatureFileError("paths or labels that are not text")
        return found


@contextmanager
def reading_parquet(path: Path) -> Iterator[ParquetReader]:
    """Reader of a feature file; raises `FeatureFileError` for any other file."""
    _, parquet = _pyarrow()
    with _damage():
        file = parquet.ParquetFile(path, page_checksum_verification=True)
    with file:
        yield ParquetReader(file)


_damage = partial(damage_as, FeatureFileError, "not a Parquet file, or a damaged one")
"""Error conversion for calls of pyarrow."""


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise MissingExtra("parquet", "a .parquet file") from error
    return pyarrow, pyarrow.parquet


def _text(text: str) -> str:
    """Text that UTF-8 can hold: file names may not be valid text."""
    return text.encode(errors="replace").decode()
