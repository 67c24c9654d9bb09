"""How a download goes: a bar with an estimate on a terminal, a few plain lines elsewhere."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from rich.progress import (
    BarColumn,
    DownloadColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.progress import Progress as Bars

from vitlab.cli.output import EscapingConsole, print_line, visible_cell
from vitlab.visible_text import visible

STEP = 10
"""Percent between two plain lines."""


class TerminalProgress:
    """One bar for each file, and notes above them."""

    def __init__(self, bars: Bars) -> None:
        self._bars = bars
        self._tasks: dict[str, TaskID] = {}

    def note(self, line: str) -> None:
        """A line above the bars."""
        self._bars.console.print(visible_cell(line))

    def advance(self, what: str, done: int, total: int) -> None:
        """Move the bar of one file."""
        if what not in self._tasks:
            self._tasks[what] = self._bars.add_task(visible(what), total=total)
        self._bars.update(self._tasks[what], completed=done)


class PlainProgress:
    """Lines for a log: the notes, and every tenth of a file."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._shown: dict[str, int] = {}

    def note(self, line: str) -> None:
        """One line."""
        print_line(line, file=self._stream, flush=True)

    def advance(self, what: str, done: int, total: int) -> None:
        """A line when the next tenth is reached."""
        percent = 100 * done // total // STEP * STEP if total else 100
        if percent > self._shown.get(what, 0):
            self._shown[what] = percent
            self.note(f"{what}: {percent} % of {total:,} bytes")


@contextmanager
def showing(stream: IO[str]) -> Iterator[TerminalProgress | PlainProgress]:
    """Somebody to tell how a download goes, as long as it goes."""
    console = EscapingConsole(file=stream)
    if not console.is_terminal:
        yield PlainProgress(stream)
        return
    with Bars(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=console,
    ) as bars:
        yield TerminalProgress(bars)
