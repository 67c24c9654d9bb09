"""How far a job with many files is: a bar with an estimate on a terminal, lines elsewhere."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from vitlab.cli.output import EscapingConsole, print_line
from vitlab.visible_text import visible

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
