"""Targets in the columns of a CSV: the class of an image, its labels, or its values."""

import csv
import io
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from vitlab.data.images import Labels
from vitlab.data.sources.folder import check_alike
from vitlab.errors import DataError, suggest
from vitlab.task import Task

# A CSV as columns of text, each row with its line in the file.

DELIMITERS = "\t,;"
"""Delimiters; the first of these in the header separates the columns."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Csv:
    """Columns by name; cells are stripped of surrounding blanks."""

    file: Path
    columns: dict[str, list[str]]
    lines: list[int]
    """Line of each row in the file, from 1."""

    def __len__(self) -> int:
        return len(self.lines)

    def where(self, row: int) -> str:
        """Name of a row in messages."""
        return f"{self.file}, line {self.lines[row]}"

    def pick(self, rows: Sequence[int]) -> "Csv":
        """Table of some of the rows."""
        columns = {name: [cells[i] for i in rows] for name, cells in self.columns.items()}
        return Csv(file=self.file, columns=columns, lines=[self.lines[i] for i in rows])


def read_csv(file: Path) -> Csv:
    """The columns of a CSV with a header, separated by commas, semicolons or tabs; UTF-8."""
    text = _text(file)
    first = text.partition("\n")[0]
    delimiter = next((mark for mark in DELIMITERS if mark in first), ",")
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    try:
        header = [name.strip() for name in next(reader, [])]
        _check_header(header, file)
        rows = [(reader.line_num, cells) for cells in reader if any(map(str.strip, cells))]
    except csv.Error as error:
        raise DataError(f"{file}, line {reader.line_num}: not CSV ({error})") from error
    if not rows:
        raise DataError(f"{file} holds a header and no row; valid: a row for each image")
    for line, cells in rows:
        if len(cells) != len(header):
            raise DataError(
                f"{file}, line {line}: {len(cells)} cells; the header has {len(header)}"
            )
    columns = {name: [cells[i].strip() for _, cells in rows] for i, name in enumerate(header)}
    return Csv(file=file, columns=columns, lines=[line for line, _ in rows])


def _text(file: Path) -> str:
    try:
        text = file.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise DataError(f"{file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{file}: not UTF-8 text (byte {error.start})") from error
    if "\0" in text:
        raise DataError(f"{file}: not text (it holds zero bytes)")
    if not text.strip():
        raise DataError(
            f"{file} is empty; valid: a first line such as path,label and a row an image"
        )
    return text


def _check_header(header: list[str], file: Path) -> None:
    for name in header:
        if not name or header.count(name) > 1:
            what = f"the column {name!r} twice" if name else "a column without a name"
            raise DataError(f"{file}: {what}; valid: a first line such as path,label")


LABEL, LABELS, VALUE = "label", "labels", "value"
SEPARATORS = ";|"
"""Separators of the labels in one cell."""
MARKS = {"0": False, "1": True}


@dataclass(frozen=True, kw_only=True)
class Targets:
    """Task of a table, and the conversion of its cells."""

    task: Task
    labels: tuple[str, ...]
    note: str
    """Decision in a few words."""
    encode: Callable[[Csv], Labels]
    """Targets of each row of this table, or of another with the same columns."""


def choose_targets(table: Csv, *, known: Sequence[str]) -> Targets:
    """Choose the task by the header; other columns are ignored, with a note."""
    names = [name for name in table.columns if name not in known]
    values = [name for name in names if name == VALUE or name.startswith(f"{VALUE}:")]
    found = [name for name in (LABEL, LABELS) if name in names] + ([VALUE] if values else [])
    if len(found) > 1:
        raise DataError(
            f"{table.file}: columns {' and '.join(map(repr, found))}; valid: one of "
            "label (a class), labels (several), value (a number)"
        )
    if not found:
        return _marks(table, names)
    used = values if found == [VALUE] else found
    make = {LABEL: _classes, LABELS: _several, VALUE: _values}[found[0]]
    return make(table, used, _ignored(name for name in names if name not in used))


def _ignored(names: Iterable[str]) -> str:
    listed = ", ".join(names)
    return f" (ignored: {listed})" if listed else ""


def _classes(table: Csv, used: Sequence[str], ignored: str) -> Targets:
    cells = table.columns[LABEL]
    for row, cell in enumerate(cells):
        if not cell:
            raise DataError(f"{table.where(row)}: no label")
    labels = sorted_labels(cells)
    if len(labels) < 2:
        raise DataError(f"{table.file} holds one class, {labels[0]!r}; valid: at least 2")
    check_alike(str(table.file), labels)
    numbers = {label: number for number, label in enumerate(labels)}

    def encode(other: Csv) -> Tensor:
        found = [_number(numbers, c, other, i) for i, c in enumerate(_column(other, LABEL))]
        return torch.tensor(found, dtype=torch.int64)

    note = (
        f"column label holds a class for each image{ignored}: single-label, {len(labels)} classes"
    )
    return Targets(task="single-label", labels=labels, note=note, encode=encode)


def _several(table: Csv, used: Sequence[str], ignored: str) -> Targets:
    labels = sorted_labels(label for cell in table.columns[LABELS] for label in split_labels(cell))
    if not labels:
        raise DataError(f"{table.file}: no row has a label; valid: labels separated by ; or |")
    check_alike(str(table.file), labels)
    numbers = {label: number for number, label in enumerate(labels)}

    def encode(other: Csv) -> Tensor:
        marks = torch.zeros(len(other), len(labels), dtype=torch.bool)
        for row, cell in enumerate(_column(other, LABELS)):
            for label in split_labels(cell):
                marks[row, _number(numbers, label, other, row)] = True
        return marks

    note = f"column labels holds any number of labels{ignored}: multi-label, {len(labels)} labels"
    return Targets(task="multi-label", labels=labels, note=note, encode=encode)


def _marks(table: Csv, names: Sequence[str]) -> Targets:
    if len(names) < 2:
        raise DataError(
            f"{table.file}: columns {', '.join(table.columns)} hold no labels; valid: label (a "
            "class), labels (several), value (a number), or two or more columns of 0 and 1"
        )

    def encode(other: Csv) -> Tensor:
        columns = [
            [_mark(cell, other, row, name) for row, cell in enumerate(_column(other, name))]
            for name in names
        ]
        return torch.tensor(columns, dtype=torch.bool).T.contiguous()

    encode(table)
    note = f"{len(names)} columns of 0 and 1: multi-label, {len(names)} labels"
    return Targets(task="multi-label", labels=tuple(names), note=note, encode=encode)


def _values(table: Csv, used: Sequence[str], ignored: str) -> Targets:
    def encode(other: Csv) -> Tensor:
        columns = [
            [_value(cell, other, row, name) for row, cell in enumerate(_column(other, name))]
            for name in used
        ]
        return torch.tensor(columns, dtype=torch.float32).T.contiguous()

    for name, column in zip(used, encode(table).unbind(1), strict=True):
        if len(column) > 1 and bool((column == column[0]).all()):
            raise DataError(
                f"{table.file}: every {name} is {column[0]:g}; nothing is to be learned"
            )
    labels = tuple(name.removeprefix(f"{VALUE}:") for name in used)
    what = "a number" if len(used) == 1 else f"{len(used)} numbers"
    columns = "column" if len(used) == 1 else "columns"
    note = f"{columns} {', '.join(used)} hold{'s' * (len(used) == 1)} {what}{ignored}: regression"
    return Targets(task="regression", labels=labels, note=note, encode=encode)


def split_labels(cell: str) -> list[str]:
    """Labels of a cell; none for an empty one."""
    for mark in SEPARATORS[1:]:
        cell = cell.replace(mark, SEPARATORS[0])
    return [label for part in cell.split(SEPARATORS[0]) if (label := part.strip())]


def sorted_labels(labels: Iterable[str]) -> tuple[str, ...]:
    """Unique labels in alphabetical order; numbers in numerical order."""
    distinct = set(labels)
    if all(label.isdecimal() for label in distinct):
        return tuple(sorted(distinct, key=lambda label: (int(label), label)))
    return tuple(sorted(distinct))


def _column(table: Csv, name: str) -> list[str]:
    if name not in table.columns:
        raise DataError(f"{table.file}: no column {name!r} among {', '.join(table.columns)}")
    return table.columns[name]


def _number(numbers: dict[str, int], label: str, table: Csv, row: int) -> int:
    if label not in numbers:
        raise DataError(
            f"{table.where(row)}: the label {label!r} is not trained; {suggest(label, numbers)}"
        )
    return numbers[label]


def _mark(cell: str, table: Csv, row: int, name: str) -> bool:
    if cell not in MARKS:
        raise DataError(
            f"{table.where(row)}: {name} is {cell!r}; valid: 0 or 1, or a column called label "
            "(a class), labels (several) or value (a number)"
        )
    return MARKS[cell]


def _value(cell: str, table: Csv, row: int, name: str) -> float:
    try:
        value = float(cell)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise DataError(f"{table.where(row)}: {name} is {cell!r}; valid: a finite number")
    return value
