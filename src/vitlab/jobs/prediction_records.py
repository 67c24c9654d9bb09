"""Predictions as lines of CSV or JSON, and back; an incomplete record at the end is skipped."""

import csv
import io
import json
from collections.abc import Iterator, Sequence
from types import NoneType
from typing import Any, Protocol, runtime_checkable

from vitlab.classify.predictor import Prediction
from vitlab.config import parse_json
from vitlab.objectives.objective import objective_of
from vitlab.task import Task

COLUMNS = ("path", "label", "probability", "top", "error")
NUMBERS = {"probability", "value"}


def columns(task: Task) -> tuple[str, ...]:
    """Fields of every record, in any format."""
    return (*COLUMNS, "value") if objective_of(task).has_values else COLUMNS


def as_text(path: str | None) -> str | None:
    """Path with bytes that are not text as backslash escapes, which every format can store."""
    return None if path is None else path.encode(errors="backslashreplace").decode()


@runtime_checkable
class Format(Protocol):
    """Text format of predictions."""

    header: bytes

    def encode(self, prediction: Prediction) -> bytes:
        """Write one record, including its final line break."""

    def decode(self, record: bytes) -> Prediction:
        """Read one record; ValueError if it is not a prediction."""

    def is_whole(self, lines: bytes) -> bool:
        """True if these lines are a complete record, not only its beginning."""


class JsonLines:
    """One JSON object per line."""

    header = b""

    def __init__(self, task: Task = "single-label") -> None:
        self._task = task

    def encode(self, prediction: Prediction) -> bytes:
        """Write one record, including its final line break."""
        # In ASCII: file names may hold bytes that are not text; escaped, they stay valid.
        return json.dumps(record(prediction)).encode() + b"\n"

    def decode(self, record: bytes) -> Prediction:
        """Read one record; ValueError if it is not a prediction."""
        return read_prediction(self._task, **parse_json(record))

    def is_whole(self, lines: bytes) -> bool:
        """True if the lines end with a line break: JSON escapes those inside a record."""
        return lines.endswith(b"\n")


class Csv:
    """Comma-separated values; `top` is a list in JSON, a missing value is an empty cell."""

    def __init__(self, task: Task = "single-label") -> None:
        self._task = task
        self.header = ",".join(columns(task)).encode() + b"\n"

    def encode(self, prediction: Prediction) -> bytes:
        """Write one record, including its final line break."""
        fields = record(prediction)
        fields["top"] = json.dumps(fields["top"], ensure_ascii=False) if fields["top"] else None
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerow(fields.values())
        return text.getvalue().encode(errors="surrogateescape")

    def decode(self, record: bytes) -> Prediction:
        """Read one record; ValueError if it is not a prediction."""
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
        """True if a line break ends the lines outside quotes; quotes in a field are doubled."""
        return lines.endswith(b"\n") and lines.count(b'"') % 2 == 0


def whole_records(file: io.BufferedIOBase, format: Format) -> Iterator[tuple[int, Prediction]]:
    """Complete records with the offset of their end; an incomplete one at the end is skipped.

    Raises ValueError if the file holds anything else.
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
                raise ValueError(f"{lines[:80]!r} is not a record") from error
            lines = b""


def record(prediction: Prediction) -> dict[str, Any]:
    """Fields of a prediction by name."""
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
    """Build a prediction from stored fields; TypeError or ValueError for wrong types."""
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
