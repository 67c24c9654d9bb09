"""A CSV as columns of text, each row with its line in the file."""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vitlab.errors import DataError

DELIMITERS = "\t,;"
"""The first of these that the header holds separates the columns."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Csv:
    """Columns by name; cells are stripped of blanks around them."""

    file: Path
    columns: dict[str, list[str]]
    lines: list[int]
    """Where each row stands in the file, from 1."""

    def __len__(self) -> int:
        return len(self.lines)

    def where(self, row: int) -> str:
        """How a message names a row."""
        return f"{self.file}, line {self.lines[row]}"

    def pick(self, rows: Sequence[int]) -> "Csv":
        """Some of the rows."""
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
