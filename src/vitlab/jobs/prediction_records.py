"""Predictions as lines of text, CSV or JSON, and back; of a torn file, what is whole."""

import csv
import io
import json
from collections.abc import Iterator, Sequence
from types import NoneType
from typing import Any, Protocol, runtime_checkable

from vitlab.classify.predictor import Prediction
from vitlab.config import parse_json
from vitlab.task import Task

COLUMNS = ("path", "label", "probability", "top", "error")
NUMBERS = {"probability", "value"}


def columns(task: Task) -> tuple[str, ...]:
    """The fields of every record of a job, whatever its format."""
    return (*COLUMNS, "value") if task == "regression" else COLUMNS


def as_text(path: str | None) -> str | None:
    """The path with bytes that are no text written out: what every format can hold."""
    return None if path is None else path.encode(errors="backslashreplace").decode()


@runtime_checkable
class Format(Protocol):
    """How predictions are written."""

    header: bytes

    def encode(self, prediction: Prediction) -> bytes:
        """One record, to its last line break."""

    def decode(self, record: bytes) -> Prediction:
        """What was encoded; ValueError when it was something else."""

    def is_whole(self, lines: bytes) -> bool:
        """Whether these lines are a record, or only its beginning."""


class JsonLines:
    """One JSON object a line."""

    header = b""

    def __init__(self, task: Task = "single-label") -> None:
        self._task = task

    def encode(self, prediction: Prediction) -> bytes:
        """One record, to its last line break."""
        # In ASCII: names of files may hold bytes that are no text, and escaped they stay valid.
        return json.dumps(record(prediction)).encode() + b"\n"

    def decode(self, record: bytes) -> Prediction:
        """What was encoded; ValueError when it was something else."""
        return read_prediction(self._task, **parse_json(record))

    def is_whole(self, lines: bytes) -> bool:
        """A line break inside JSON is escaped."""
        return lines.endswith(b"\n")


class Csv:
    """Comma-separated values; `top` is a list in JSON, what is missing is empty."""

    def __init__(self, task: Task = "single-label") -> None:
        self._task = task
        self.header = ",".join(columns(task)).encode() + b"\n"

    def encode(self, prediction: Prediction) -> bytes:
        """One record, to its last line break."""
        fields = record(prediction)
        fields["top"] = json.dumps(fields["top"], ensure_ascii=False) if fields["top"] else None
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerow(fields.values())
        return text.getvalue().encode(errors="surrogateescape")

    def decode(self, record: bytes) -> Prediction:
        """What was encoded; ValueError when it was something else."""
        text = record.decode(errors="surrogateescape")
        before = csv.field_size_limit(max(len(text), 1))  # a long `top` is one cell
        try:
            (row,) = csv.reader(io.StringIO(text, newline=""))
        except csv.Error as error:
            raise ValueError(str(error)) from error
        finally:
            csv.field_size_limit(before)
        texts = dict(zip(columns(self._task), row, strict=True))
        fields: dict[str, Any] = {name: text or None for name, text in texts.items()}
        for name in NUMBERS & fields.keys():
            fields[name] = float(texts[name]) if texts[name] else None
        return read_prediction(self._task, **fields | {"top": parse_json(texts["top"] or "[]")})

    def is_whole(self, lines: bytes) -> bool:
        """A line break inside quotes ends nothing; quotes in a field are doubled."""
        return lines.endswith(b"\n") and lines.count(b'"') % 2 == 0


def whole_records(file: io.BufferedIOBase, format: Format) -> Iterator[tuple[int, Prediction]]:
    """Each record with the place where it ends; what a killed process left unfinished is not one.

    ValueError where the file holds something else.
    """
    start = file.read(len(format.header))
    if start != format.header:
        if format.header.startswith(start):
            return
        raise ValueError(f"it begins with {start[:40]!r}")
    end = len(start)
    lines = b""
    for line in file:
        lines += line
        if format.is_whole(lines):
            end += len(lines)
            try:
                yield end, format.decode(lines)
            except (TypeError, KeyError) as error:
                raise ValueError(f"{lines[:80]!r} is no record") from error
            lines = b""


def record(prediction: Prediction) -> dict[str, Any]:
    """The prediction by the names of its fields."""
    return {name: getattr(prediction, name) for name in columns(prediction.task)}


def read_prediction(
    task: Task,
    path: str | None,
    label: str | None,
    probability: float | None,
    top: Sequence[Any],
    error: str | None,
    value: float | None = None,
) -> Prediction:
    """A prediction of stored fields; TypeError or ValueError where their types are others."""
    pairs = tuple((name, number) for name, number in top)
    texts = (path, label, error, *(name for name, _ in pairs))
    numbers = (probability, value, *(number for _, number in pairs))
    if not all(isinstance(each, str | None) for each in texts):
        raise TypeError("a path, label or error that is not text")
    if not all(type(each) in (float, int, NoneType) for each in numbers):
        raise TypeError("a probability or value that is not a number")
    return Prediction(
        path=path,
        label=label,
        probability=probability,
        top=pairs,
        error=error,
        value=value,
        task=task,
    )
