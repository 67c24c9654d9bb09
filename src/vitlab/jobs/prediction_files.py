"""Files of predictions that grow batch by batch, and that a killed process leaves usable."""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from io import BufferedRandom
from itertools import islice
from pathlib import Path
from typing import Any

from vitlab.classify.predictor import Prediction, shortest
from vitlab.errors import FileError, MissingExtra, one_line
from vitlab.io.files import check_parent, locked, replacing
from vitlab.jobs.prediction_manifest import Job, continued, job_path, read_job, write_job
from vitlab.jobs.prediction_records import (
    NUMBERS,
    Csv,
    Format,
    JsonLines,
    as_text,
    columns,
    read_prediction,
    record,
    whole_records,
)
from vitlab.task import Task

# Predictions as a Parquet file; needs the extra `parquet`.

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


PARQUET = ".parquet"
FORMATS: dict[str, Callable[[Task], Format]] = {
    ".csv": Csv,
    ".jsonl": JsonLines,
    PARQUET: JsonLines,
}
"""By ending; what will be Parquet is lines of JSON until all of it is there."""


class PredictionFile:
    """An open file of predictions: what is done, and room for more."""

    def __init__(self, output: Path, job: Job, file: BufferedRandom) -> None:
        self.output = output
        self.job = job
        self.done: Counter[str | None] = Counter()
        """How often each path has been predicted."""
        self.count = self.failed = 0
        self._file = file
        self._format = FORMATS[output.suffix.lower()](job.task)
        self._continue()

    def append(self, predictions: Sequence[Prediction]) -> None:
        """Write one batch, so that it survives the process."""
        try:
            self._file.write(b"".join(map(self._format.encode, predictions)))
            self._file.flush()
        except OSError as error:
            raise FileError(f"{self.output}: cannot be written ({error.strerror})") from error
        self._note(predictions)

    def finish(self) -> None:
        """All images are done."""
        if self.count == self.job.finished:
            return
        os.fsync(self._file.fileno())
        if _is_parquet(self.output):
            write_parquet(self.output, self.records(), self.job.task)
        write_job(self.output, replace(self.job, finished=self.count))

    def records(self) -> Iterator[Prediction]:
        """What the file holds, from its beginning."""
        self._file.flush()
        with open(self._file.name, "rb") as file:
            yield from (prediction for _, prediction in whole_records(file, self._format))

    def _continue(self) -> None:
        """Take in what is there, and cut off what is not whole.

        Only whole batches are kept: the others are computed again, with the same neighbours.
        """
        end, batch = 0, []
        try:
            for place, prediction in whole_records(self._file, self._format):
                batch.append(prediction)
                if self._ends_batch(self.count + len(batch)):
                    self._note(batch)
                    end, batch = place, []
        except ValueError as error:
            raise FileError(
                f"{self._file.name}: no prediction of ours behind record {self.count + len(batch)} "
                f"({' '.join(str(error).split())}); --overwrite starts anew"
            ) from error
        self._file.seek(end)
        self._file.truncate()
        if not end:
            self._file.write(self._format.header)

    def _ends_batch(self, count: int) -> bool:
        """Whether the uninterrupted job would have written so many records at some moment."""
        finished, size = self.job.finished, self.job.batch_size
        return count == finished or (count - finished * (count > finished)) % size == 0

    def _note(self, predictions: Sequence[Prediction]) -> None:
        self.count += len(predictions)
        self.done.update(as_text(prediction.path) for prediction in predictions)
        self.failed += sum(prediction.error is not None for prediction in predictions)


@contextmanager
def open_predictions(
    output: Path, job: Job, *, batch_size: int | None = None, overwrite: bool = False
) -> Iterator[PredictionFile]:
    """The file of a job, begun or continued; for one that is another job's, an error."""
    before = None if overwrite else read_job(output)
    data = _data_path(output)
    if before is not None and (data.exists() or output.exists()):
        job = continued(job, before, output, batch_size=batch_size)
    elif not overwrite and output.exists() and output.stat().st_size:
        raise FileError(f"{output} exists and is no job of ours; --overwrite starts anew")
    with locked(data, lambda: _refuse(output)), data.open("r+b") as file:
        if overwrite:
            _forget(output, file)
        elif _is_parquet(output) and output.exists() and not data.stat().st_size:
            file.writelines(map(JsonLines().encode, parquet_records(output, job.task)))
            file.seek(0)
        write_job(output, job)
        yield PredictionFile(output, job, file)
    if data != output:
        data.unlink(missing_ok=True)


def _forget(output: Path, file: BufferedRandom) -> None:
    """Remove what there was; without its job, nobody takes what is left for a beginning."""
    job_path(output).unlink(missing_ok=True)
    file.truncate()
    if _is_parquet(output):
        output.unlink(missing_ok=True)


def check_output(output: Path) -> None:
    """Refuse a file that cannot be written, before anything is computed for it."""
    ending = output.suffix.lower()
    if ending not in FORMATS:
        raise FileError(f"{output}: unknown ending {ending!r}; valid: {', '.join(FORMATS)}")
    check_parent(output)
    if output.is_dir():
        raise FileError(f"{output} is a folder; valid: a file")
    if _is_parquet(output):
        require_parquet()


def _data_path(output: Path) -> Path:
    """Where records are written: the file itself, or the lines that a Parquet file is made of."""
    return output.with_name(f"{output.name}.part.jsonl") if _is_parquet(output) else output


def _is_parquet(output: Path) -> bool:
    return output.suffix.lower() == PARQUET


def _refuse(output: Path) -> None:
    raise FileError(f"{output} is being written by another process")
