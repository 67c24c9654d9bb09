"""Predictions as a Parquet file; needs the extra `parquet`."""

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from vitlab.errors import FileError, MissingExtra
from vitlab.files import replacing
from vitlab.inference.predictor import Prediction, shortest
from vitlab.tasks.prediction_records import as_text

ROWS = 10_000
"""Of a row group: what is in memory at once."""


def require_parquet() -> None:
    """The one clear line where pyarrow is missing."""
    _pyarrow()


def write_parquet(path: Path, predictions: Iterable[Prediction]) -> None:
    """Write all of it, in place of what was there; the same rows give the same bytes."""
    arrow, parquet = _pyarrow()
    score = arrow.struct([("label", arrow.string()), ("probability", arrow.float32())])
    schema = arrow.schema(
        [
            ("path", arrow.string()),
            ("label", arrow.string()),
            ("probability", arrow.float32()),
            ("top", arrow.list_(score)),
            ("error", arrow.string()),
        ]
    )
    rows = map(_row, predictions)
    with replacing(path) as file, parquet.ParquetWriter(file, schema) as writer:
        while group := list(islice(rows, ROWS)):
            writer.write_table(arrow.Table.from_pylist(group, schema=schema))


def parquet_records(path: Path) -> Iterator[Prediction]:
    """What `write_parquet` wrote."""
    arrow, parquet = _pyarrow()
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(ROWS):
                yield from map(_prediction, batch.to_pylist())
    except (arrow.ArrowException, KeyError) as error:
        raise FileError(
            f"{path}: holds no predictions of ours ({error}); --overwrite starts anew"
        ) from error


def _row(prediction: Prediction) -> dict[str, Any]:
    top = [{"label": label, "probability": value} for label, value in prediction.top]
    return {
        "path": as_text(prediction.path),
        "label": as_text(prediction.label),
        "probability": prediction.probability,
        "top": top,
        "error": as_text(prediction.error),
    }


def _prediction(row: dict[str, Any]) -> Prediction:
    return Prediction(
        path=row["path"],
        label=row["label"],
        probability=None if row["probability"] is None else shortest(row["probability"]),
        top=tuple((score["label"], shortest(score["probability"])) for score in row["top"]),
        error=row["error"],
    )


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise MissingExtra("parquet", "a .parquet file") from None
    return pyarrow, pyarrow.parquet
