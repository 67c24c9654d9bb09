"""How a download goes: a bar with an estimate on a terminal, a few plain lines elsewhere."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO

from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.progress import Progress as Bars

from vitlab.cli.output import EscapingConsole, print_line, visible_cell
from vitlab.io.text import visible

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


# How far a job with many files is: a bar with an estimate on a terminal, lines elsewhere.

PLAIN_EVERY = 10.0
"""Seconds between two plain lines."""


@contextmanager
def counting(what: str, stream: IO[str]) -> Iterator[Callable[[int, int], None]]:
    """Somebody to tell how many of how many are done."""
    console = EscapingConsole(file=stream)
    if not console.is_terminal:
        yield _Lines(what, stream).show
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(visible(what), total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


class _Lines:
    def __init__(self, what: str, stream: IO[str]) -> None:
        self._what, self._stream = what, stream
        self._start = self._shown = time.monotonic()

    def show(self, done: int, total: int) -> None:
        now = time.monotonic()
        if done and done < total and now - self._shown >= PLAIN_EVERY:
            self._shown = now
            left = (now - self._start) * (total - done) / done
            line = f"{self._what}: {done:,} of {total:,}, {left / 60:.1f} min left"
            print_line(line, file=self._stream, flush=True)


# How far a job is: a bar with an estimate for each of its parts, on a terminal alone.


@contextmanager
def steps() -> Iterator[Callable[[str, int, int], None] | None]:
    """Somebody to tell what is being done, and how many of how many are; None elsewhere."""
    console = EscapingConsole(stderr=True)
    if not console.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as bars:
        tasks = {}

        def advance(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(visible(what), total=total)
            bars.update(tasks[what], completed=done, total=total)

        yield advance
