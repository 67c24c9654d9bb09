"""Files of predictions that grow batch by batch, and that a killed process leaves usable."""

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from io import BufferedRandom
from pathlib import Path

from vitlab.errors import FileError
from vitlab.files import check_parent
from vitlab.inference.predictor import Prediction
from vitlab.kinds import Task
from vitlab.lock import locked
from vitlab.tasks.prediction_job import Job, continued, job_path, read_job, write_job
from vitlab.tasks.prediction_parquet import parquet_records, require_parquet, write_parquet
from vitlab.tasks.prediction_records import (
    Csv,
    Format,
    JsonLines,
    as_text,
    whole_records,
)

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
