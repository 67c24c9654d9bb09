"""Predictions as a Parquet file; needs the extra `parquet`."""

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from vitlab.errors import FileError, MissingExtra, one_line
from vitlab.files import replacing
from vitlab.inference.predictor import Prediction, shortest
from vitlab.kinds import Task
from vitlab.tasks.prediction_records import NUMBERS, as_text, columns, read_prediction, record

ROWS = 10_000
"""Of a row group: what is in memory at once."""


def require_parquet() -> None:
    """The one clear line where pyarrow is missing."""
    _pyarrow()


def write_parquet(
    path: Path, predictions: Iterable[Prediction], task: Task = "single-label"
) -> None:
    """Write all of it, in place of what was there; the same rows give the same bytes."""
    arrow, parquet = _pyarrow()
    schema = _schema(arrow, task)
    rows = map(_row, predictions)
    with (
        replacing(path) as file,
        parquet.ParquetWriter(file, schema, write_page_checksum=True) as writer,
    ):
        while group := list(islice(rows, ROWS)):
            writer.write_table(arrow.Table.from_pylist(group, schema=schema))


def _schema(arrow: Any, task: Task) -> Any:
    score = arrow.struct([("label", arrow.string()), (_number(task), arrow.float32())])
    types = {
        "path": arrow.string(),
        "label": arrow.string(),
        "probability": arrow.float32(),
        "top": arrow.list_(score),
        "error": arrow.string(),
        "value": arrow.float32(),
    }
    return arrow.schema([(name, types[name]) for name in columns(task)])


def _number(task: Task) -> str:
    """What the number beside a label in `top` is."""
    return "value" if task == "regression" else "probability"


def parquet_records(path: Path, task: Task = "single-label") -> Iterator[Prediction]:
    """What `write_parquet` wrote."""
    arrow, parquet = _pyarrow()
    try:
        with parquet.ParquetFile(path, page_checksum_verification=True) as file:
            for batch in file.iter_batches(ROWS):
                yield from (_prediction(row, task) for row in batch.to_pylist())
    except (arrow.ArrowException, OSError, LookupError, TypeError, ValueError) as error:
        raise FileError(
            f"{path}: holds no predictions of ours ({one_line(error)}); --overwrite starts anew"
        ) from error


def _row(prediction: Prediction) -> dict[str, Any]:
    number = _number(prediction.task)
    texts = {name: as_text(getattr(prediction, name)) for name in ("path", "label", "error")}
    top = [{"label": as_text(label), number: value} for label, value in prediction.top]
    return record(prediction) | texts | {"top": top}


def _prediction(row: dict[str, Any], task: Task) -> Prediction:
    number = _number(task)
    numbers = {name: row[name] for name in NUMBERS & set(columns(task))}
    rest = {name: None if each is None else shortest(each) for name, each in numbers.items()}
    return read_prediction(
        task,
        path=row["path"],
        label=row["label"],
        top=tuple((score["label"], shortest(score[number])) for score in row["top"]),
        error=row["error"],
        **rest,
    )


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise MissingExtra("parquet", "a .parquet file") from None
    return pyarrow, pyarrow.parquet
