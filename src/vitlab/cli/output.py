"""Printing for all commands: lines, tables and JSON. Nothing else in `cli` writes to a stream.

Names of files and classes, metadata and error messages come from files and downloads. They are
escaped here (`visible`), so that they cannot control the terminal or fake a line.
"""

import errno
import json
import logging
import os
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import ModuleType
from typing import IO, TYPE_CHECKING, Any, TextIO

from rich.bar import Bar
from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from vitlab.io.text import visible

if TYPE_CHECKING:
    from numpy import ndarray

resource: ModuleType | None
try:  # now, since an import later needs a file descriptor itself
    import resource
except ImportError:  # Windows
    resource = None

WIDE = 10_000
"""Columns of every terminal: nothing in a table is wrapped or cut."""


class EscapingConsole(Console):
    """Rich console without markup that escapes the characters of every text."""

    def __init__(self, file: IO[str] | None = None, **options: Any) -> None:
        super().__init__(file=file, markup=False, emoji=False, highlight=False, **options)

    def print(self, *objects: Any, **options: Any) -> None:
        """Print, and name the stream that fails."""
        with _naming(self.file):
            super().print(*objects, **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Segments with escaped text; colours and cursor movements of Rich itself stay."""
        for segment in super().render(renderable, options):
            safe = visible(segment.text, keep="\n")
            yield (
                segment if segment.control or safe == segment.text else segment._replace(text=safe)
            )


def human(number: float) -> str:
    """Three digits and a unit: `86.6 M`."""
    for unit in ("", " k", " M", " G", " T"):
        if abs(number) < 999.5:
            return f"{number:.3g}{unit}"
        number /= 1000
    return f"{number:.3g} P"


def print_line(
    *values: object, sep: str = " ", file: IO[str] | None = None, flush: bool = False
) -> None:
    r"""Print one line; a line break inside a value is shown as `\n`."""
    with _naming(file):
        print(*(visible(str(value)) for value in values), sep=sep, file=file, flush=flush)


def print_text(text: str, *, end: str = "\n", file: IO[str] | None = None) -> None:
    """Print lines of our own, such as a help text; line breaks stay."""
    with _naming(file):
        print(visible(text, keep="\n"), end=end, file=file)


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print text columns; every column but the first is right-aligned."""
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for i, column in enumerate(columns):
        table.add_column(visible_cell(column), justify="right" if i else "left", no_wrap=True)
    for row in rows:
        table.add_row(*map(visible_cell, row))
    EscapingConsole(width=WIDE).print(table, soft_wrap=True)


def visible_cell(text: str, style: str = "") -> Text:
    """Text on one line for a table of Rich."""
    return Text(visible(text), style)


def print_pairs(pairs: Iterable[tuple[str, str]]) -> None:
    """Print `key  value` lines, keys aligned."""
    shown = [(visible(key), value) for key, value in pairs]
    width = max(len(key) for key, _ in shown)
    for key, value in shown:
        print_line(f"{key:<{width}}  {value}")


def print_json(data: Any) -> None:
    """Print exact values for another program."""
    print_text(json.dumps(data, indent=2))


def flush_output() -> None:
    """Flush standard output."""
    with _naming(None):
        sys.stdout.flush()


@contextmanager
def _naming(stream: IO[str] | None) -> Iterator[None]:
    """Give the error of a full or closed stream the name of the stream."""
    try:
        yield
    except OSError as error:
        error.filename = "standard error" if stream is sys.stderr else "standard output"
        raise


def escape_messages() -> None:
    """Escape log messages and warnings of all libraries from now on."""
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(EscapingFormatter())
    usual = warnings.formatwarning

    def escaped(message: Any, *rest: Any, **options: Any) -> str:
        return visible(usual(visible(str(message)), *rest, **options), keep="\n")

    warnings.formatwarning = escaped


class EscapingFormatter(logging.Formatter):
    """Formatter of log records that escapes their text."""

    def format(self, record: logging.LogRecord) -> str:
        """One line, or a message with its traceback."""
        return visible(super().format(record), keep="\n" if record.exc_info else "")


# The images that a command could not read, named on standard error.

SHOWN = 20
"""Images that are named; --json has all."""


def print_left_out(broken: Mapping[str, str]) -> None:
    """A line for each, with the reason."""
    for path, reason in list(broken.items())[:SHOWN]:
        print_line(f"left out: {path}: {reason}", file=sys.stderr)
    if len(broken) > SHOWN:
        print_line(f"left out: {len(broken) - SHOWN:,} more; --json has all", file=sys.stderr)


# The likeliest classes of one image as bars, for a terminal.

WIDEST = 40
"""Columns of a bar for certainty."""


def print_bars(
    title: str, top: Sequence[tuple[str, float]], console: EscapingConsole | None = None
) -> None:
    """A line for each class: its name, a bar, its probability; every bar of the same scale."""
    console = console or EscapingConsole()
    names = max(len(visible(label)) for label, _ in top)
    width = max(8, min(WIDEST, console.width - min(names, console.width // 2) - 10))
    grid = Table.grid(padding=(0, 1))
    grid.add_column(overflow="ellipsis", no_wrap=True, max_width=console.width // 2)
    grid.add_column(width=width)
    grid.add_column(justify="right")
    for number, (label, probability) in enumerate(top):
        style = "bold" if not number else ""
        bar = Bar(1.0, 0.0, probability, width=width, color="green" if not number else "cyan")
        grid.add_row(visible_cell(label, style), bar, visible_cell(f"{probability:.1%}", style))
    console.print(visible_cell(title, "dim"), soft_wrap=True)
    console.print(grid)


UPPER_HALF = "▀"


def thumbnail(image: "ndarray[Any, Any]", side: int) -> Text:
    """An image [H, W, 3] as `side` columns and `side / 2` lines of half blocks in true colour."""
    import numpy as np
    from PIL import Image
    from rich.color import Color
    from rich.style import Style

    small = np.asarray(Image.fromarray(image).resize((side, side), Image.Resampling.BOX))
    text = Text(no_wrap=True)
    for row in range(0, side, 2):
        for upper, lower in zip(small[row].tolist(), small[row + 1].tolist(), strict=True):
            style = Style(color=Color.from_rgb(*upper), bgcolor=Color.from_rgb(*lower))
            text.append(UPPER_HALF, style)
        text.append("\n")
    text.rstrip()
    return text


# Standard streams that are closed, full or broken.


def open_closed_streams() -> None:
    """Open the null device in place of closed standard streams.

    Otherwise the next file that is opened gets the number of a standard stream, and everything
    that is printed goes into it.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            stream = open(number, "r" if name == "stdin" else "w", closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)


def flush_or_discard(stream: TextIO) -> None:
    """Flush a stream, or discard its buffer if that fails.

    Otherwise the interpreter tries again when it ends, and ends with a code of its own.
    """
    try:
        stream.flush()
    except OSError:
        with suppress(OSError):
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, stream.fileno())
            os.close(null)


TOO_MANY_FILES = (os.strerror(errno.EMFILE), os.strerror(errno.ENFILE))
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)
NO_MORE = (errno.EAGAIN, errno.ENOMEM)
"""No further process, or no memory for it."""


def shortage_in(error: Exception) -> str | None:
    """Describe the shortage behind an error, and the remedy; None for any other error."""
    if any(words in str(error) for words in TOO_MANY_FILES):
        return f"too many open files: {_limit()}raise it, or use fewer workers"
    if isinstance(error, OSError) and error.filename is None:
        return error.strerror if error.errno in (*NO_ROOM, *NO_MORE) else None
    return None


def _limit() -> str:
    if resource is None:
        return "the system allows no more; "
    return f"the limit is {resource.getrlimit(resource.RLIMIT_NOFILE)[0]:,} (ulimit -n); "
