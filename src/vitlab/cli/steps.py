"""How far a job is: a bar with an estimate for each of its parts, on a terminal alone."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from vitlab.cli.output import EscapingConsole
from vitlab.visible_text import visible


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
