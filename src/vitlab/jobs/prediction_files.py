"""Files of predictions: written batch by batch, and continued after an interruption."""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from io import BufferedRandom
from itertools import islice
from pathlib import Path
from typing import Any

from vitlab.classify.predictor import Prediction, shortest
from vitlab.config import from_dict, parse_json, to_dict
from vitlab.errors import FileError, MissingExtra, VitlabError, one_line
from vitlab.io.files import check_parent, locked, replacing, write_json
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
from vitlab.objectives.objective import objective_of
from vitlab.task import Task

VERSION = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class PredictionManifest:
    """Settings of the predictions in a file, which is continued only with the same settings.

    Stored beside the file as `FILE.job.json`.
    """

    model: str
    fingerprint: str
    """Digest of the weights, the preprocessing and the labels."""
    images: tuple[str, ...]
    """Absolute names of files, folders and patterns."""
    written: tuple[str, ...] = ()
    """Names as given: the paths in the records begin with them."""
    top: int
    task: Task
    threshold: float | None
    """Minimum probability of a predicted label; None if the task does not threshold."""
    batch_size: int
    """Batch size: the last bits of a probability depend on the other images of the batch."""
    merge_tokens: int = 0
    """Tokens merged in each block."""
    engine: str = "torch"
    """Inference engine: the last bits of a probability depend on it, too."""
    max_pixels: int | None = None
    """Largest image of a job in parts."""
    finished: int = 0
    """Number of records when all images were done; 0: they are not."""
    format_version: int = VERSION


def job_path(output: Path) -> Path:
    """Path of the manifest of a prediction file."""
    return output.with_name(f"{output.name}.job.json")


def read_job(output: Path) -> PredictionManifest | None:
    """Read the manifest of a prediction file; None if there is none."""
    path = job_path(output)
    if not path.exists():
        return None
    try:
        content = parse_json(path.read_text())
        if content.get("format_version") != VERSION:
            raise ValueError(f"format_version {content.get('format_version')}; valid: {VERSION}")
        return from_dict(PredictionManifest, content)
    except (VitlabError, ValueError, AttributeError) as error:
        raise FileError(f"{path}: not a job ({error}); --overwrite starts anew") from error


def write_job(output: Path, job: PredictionManifest) -> None:
    """Write the manifest atomically."""
    write_json(job_path(output), to_dict(job))


def continued(
    job: PredictionManifest, before: PredictionManifest, output: Path, *, batch_size: int | None
) -> PredictionManifest:
    """Manifest of a job that is continued; raise if its settings differ from those before."""
    changes = {
        "another number of merged tokens": (
            before.merge_tokens,
            job.merge_tokens,
            before.merge_tokens == job.merge_tokens,
        ),
        "another limit of pixels": (
            before.max_pixels,
            job.max_pixels,
            before.max_pixels == job.max_pixels,
        ),
        "another engine": (before.engine, job.engine, before.engine == job.engine),
        "another model": (before.model, job.model, before.fingerprint == job.fingerprint),
        "other images": (_names(before), _names(job), before.images == job.images),
        "images written as": (
            " ".join(before.written[:3]),
            " ".join(job.written[:3]),
            not before.written or before.written == job.written,
        ),
        "another task": (before.task, job.task, before.task == job.task),
        "another top": (before.top, job.top, before.top == job.top),
        "another threshold": (
            before.threshold,
            job.threshold,
            before.threshold == job.threshold,
        ),
        "another batch size": (
            before.batch_size,
            batch_size,
            batch_size in (None, before.batch_size),
        ),
    }
    for what, (then, now, same) in changes.items():
        if not same:
            advice = f"--engine {then} continues, " if what == "another engine" else ""
            raise FileError(
                f"{output} was begun with {what} ({then}, now {now}); "
                f"{advice}--overwrite starts anew"
            )
    return replace(job, batch_size=before.batch_size, finished=before.finished)


def _names(job: PredictionManifest) -> str:
    shown = [os.path.relpath(name) if os.path.isabs(name) else name for name in job.images[:3]]
    return " ".join([*shown, *(["…"] if len(job.images) > 3 else [])])


# Predictions as a Parquet file; needs the extra `parquet`.

ROWS = 10_000
"""Rows of a row group, and so of the rows in memory at once."""


def require_parquet() -> None:
    """Raise MissingExtra if pyarrow is not installed."""
    _pyarrow()


def write_parquet(
    path: Path, predictions: Iterable[Prediction], task: Task = "single-label"
) -> None:
    """Write a Parquet file atomically; equal predictions give equal bytes."""
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
    """Name of the number beside a label in `top`."""
    return "value" if objective_of(task).has_values else "probability"


def parquet_records(path: Path, task: Task = "single-label") -> Iterator[Prediction]:
    """Read the predictions of a file of `write_parquet`."""
    arrow, parquet = _pyarrow()
    try:
        with parquet.ParquetFile(path, page_checksum_verification=True) as file:
            for batch in file.iter_batches(ROWS):
                yield from (_prediction(row, task) for row in batch.to_pylist())
    except (arrow.ArrowException, OSError, LookupError, TypeError, ValueError) as error:
        raise FileError(
            f"{path}: holds no predictions of vitlab ({one_line(error)}); --overwrite starts anew"
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
"""Formats by file ending; a Parquet file is collected as lines of JSON until it is complete."""


class PredictionFile:
    """An open file of predictions, with the predictions already in it."""

    def __init__(self, output: Path, job: PredictionManifest, file: BufferedRandom) -> None:
        self.output = output
        self.job = job
        self.done: Counter[str | None] = Counter()
        """Number of predictions by path."""
        self.count = self.failed = 0
        self._file = file
        self._format = FORMATS[output.suffix.lower()](job.task)
        self._continue()

    def append(self, predictions: Sequence[Prediction]) -> None:
        """Write one batch and flush it."""
        try:
            self._file.write(b"".join(map(self._format.encode, predictions)))
            self._file.flush()
        except OSError as error:
            raise FileError(f"{self.output}: cannot be written ({error.strerror})") from error
        self._note(predictions)

    def finish(self) -> None:
        """Mark the job as done, and write a Parquet file if that is the format."""
        if self.count == self.job.finished:
            return
        os.fsync(self._file.fileno())
        if _is_parquet(self.output):
            write_parquet(self.output, self.records(), self.job.task)
        write_job(self.output, replace(self.job, finished=self.count))

    def records(self) -> Iterator[Prediction]:
        """Read all predictions of the file."""
        self._file.flush()
        with open(self._file.name, "rb") as file:
            yield from (prediction for _, prediction in whole_records(file, self._format))

    def _continue(self) -> None:
        """Read the predictions already there, and cut off an incomplete batch at the end.

        Only whole batches are kept: an image is computed again in the same batch as before.
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
                f"{self._file.name}: no prediction after record {self.count + len(batch)} "
                f"({' '.join(str(error).split())}); --overwrite starts anew"
            ) from error
        self._file.seek(end)
        self._file.truncate()
        if not end:
            self._file.write(self._format.header)

    def _ends_batch(self, count: int) -> bool:
        """True if a batch ends after this number of records."""
        finished, size = self.job.finished, self.job.batch_size
        return count == finished or (count - finished * (count > finished)) % size == 0

    def _note(self, predictions: Sequence[Prediction]) -> None:
        self.count += len(predictions)
        self.done.update(as_text(prediction.path) for prediction in predictions)
        self.failed += sum(prediction.error is not None for prediction in predictions)


@contextmanager
def open_predictions(
    output: Path, job: PredictionManifest, *, batch_size: int | None = None, overwrite: bool = False
) -> Iterator[PredictionFile]:
    """Begin or continue a file; raise if its manifest has other settings."""
    before = None if overwrite else read_job(output)
    data = _data_path(output)
    if before is not None and (data.exists() or output.exists()):
        job = continued(job, before, output, batch_size=batch_size)
    elif not overwrite and output.exists() and output.stat().st_size:
        raise FileError(
            f"{output} exists and was not written by vitlab predict; --overwrite starts anew"
        )
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
    """Empty the file; the manifest goes first, so that no leftover can be continued."""
    job_path(output).unlink(missing_ok=True)
    file.truncate()
    if _is_parquet(output):
        output.unlink(missing_ok=True)


def check_output(output: Path) -> None:
    """Raise if the file cannot be written; called before anything is computed."""
    ending = output.suffix.lower()
    if ending not in FORMATS:
        raise FileError(f"{output}: unknown ending {ending!r}; valid: {', '.join(FORMATS)}")
    check_parent(output)
    if output.is_dir():
        raise FileError(f"{output} is a folder; valid: a file")
    if _is_parquet(output):
        require_parquet()


def _data_path(output: Path) -> Path:
    """Path that records are appended to: the file itself, or lines of JSON for a Parquet file."""
    return output.with_name(f"{output.name}.part.jsonl") if _is_parquet(output) else output


def _is_parquet(output: Path) -> bool:
    return output.suffix.lower() == PARQUET


def _refuse(output: Path) -> None:
    raise FileError(f"{output} is being written by another process")
