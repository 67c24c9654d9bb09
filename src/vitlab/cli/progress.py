"""Progress of downloads, jobs and training runs: bars on a terminal, plain lines elsewhere."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING

import typer
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from vitlab.cli.output import EscapingConsole, print_line, visible_cell
from vitlab.errors import Interrupted
from vitlab.io.text import visible

if TYPE_CHECKING:
    from rich.console import Console  # noqa: TID251  # as Progress types an EscapingConsole

    from vitlab.jobs.plan import Plan
    from vitlab.jobs.run_result import RunResult
    from vitlab.jobs.training_run import Watcher
    from vitlab.training.loggers import Metric

PLAIN_PERCENT = 10
"""Percent of a download between two plain lines."""
PLAIN_SECONDS = 10.0
"""Seconds between two plain lines of a job or a run."""


@contextmanager
def _bars(
    stream: IO[str], *columns: ProgressColumn, transient: bool = False
) -> Iterator[Progress | None]:
    """Bars while the context is open; None if the stream is not a terminal."""
    console = EscapingConsole(file=stream)
    if not console.is_terminal:
        yield None
        return
    with Progress(*columns, console=console, transient=transient) as bars:
        yield bars


def _name() -> TextColumn:
    return TextColumn("{task.description}", markup=False)


class DownloadBars:
    """One bar for each file, and notes above them."""

    def __init__(self, bars: Progress) -> None:
        self._bars = bars
        self._tasks: dict[str, TaskID] = {}

    def note(self, line: str) -> None:
        """Print a line above the bars."""
        self._bars.console.print(visible_cell(line))

    def advance(self, what: str, done: int, total: int | None) -> None:
        """Move the bar of one file."""
        if what not in self._tasks:
            self._tasks[what] = self._bars.add_task(visible(what), total=total)
        self._bars.update(self._tasks[what], completed=done, total=total)


class DownloadLines:
    """Lines for a log: the notes, and every tenth of a file."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream
        self._shown: dict[str, int] = {}

    def note(self, line: str) -> None:
        """Print one line."""
        print_line(line, file=self._stream, flush=True)

    def advance(self, what: str, done: int, total: int) -> None:
        """Print a line when the next tenth is reached."""
        percent = 100 * done // total // PLAIN_PERCENT * PLAIN_PERCENT if total else 100
        if percent > self._shown.get(what, 0):
            self._shown[what] = percent
            self.note(f"{what}: {percent} % of {total:,} bytes")


@contextmanager
def download_progress(stream: IO[str]) -> Iterator[DownloadBars | DownloadLines]:
    """Progress of a download, file by file."""
    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with _bars(stream, _name(), *columns) as bars:
        yield DownloadLines(stream) if bars is None else DownloadBars(bars)


@contextmanager
def job_progress() -> Iterator[Callable[[str, int, int | None], None] | None]:
    """Callback (part, done, total) with one bar for each part; None outside a terminal."""
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with _bars(sys.stderr, _name(), *columns, transient=True) as bars:
        yield None if bars is None else DownloadBars(bars).advance


@contextmanager
def image_progress(*, shown: bool = True) -> Iterator[Callable[[int, int | None], None] | None]:
    """Callback (done, total) with one bar of images; None outside a terminal."""
    if not shown:
        yield None
        return
    with job_progress() as advance:
        yield None if advance is None else lambda done, total: advance("images", done, total)


@contextmanager
def file_progress(what: str, stream: IO[str]) -> Iterator[Callable[[int, int], None]]:
    """Callback (done, total) of a job over files: a bar, or a line every few seconds."""
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with _bars(stream, _name(), *columns, transient=True) as bars:
        if bars is None:
            yield CountLines(what, stream).show
            return
        task = bars.add_task(visible(what), total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)


class CountLines:
    """Lines with a count and the time left, every few seconds."""

    def __init__(self, what: str, stream: IO[str]) -> None:
        self._what, self._stream = what, stream
        self._start = self._shown = time.monotonic()

    def show(self, done: int, total: int) -> None:
        """Print a line if the last one is some seconds old."""
        now = time.monotonic()
        if 0 < done < total and now - self._shown >= PLAIN_SECONDS:
            self._shown = now
            left = _minutes((now - self._start) * (total - done) / done)
            line = f"{self._what}: {done:,} of {total:,}{left}"
            print_line(line, file=self._stream, flush=True)


def _minutes(seconds: float) -> str:
    return f", {seconds / 60:.1f} min left"


# Training runs.

HELD_OUT = {
    "accuracy": "held-out accuracy {:.1%}",
    "balanced": "held-out balanced accuracy {:.1%}",
    "map": "held-out mAP {:.1%}",
    "r2": "held-out R2 {:.3f}",
}
"""Metrics of held-out images that are shown."""
SLOWER = 1.25
"""Time of a run, as a multiple of the last estimate, from which on a new one is printed."""
INSPECTING = "inspecting images"


class RunView:
    """Loss, held-out metric, speed, learning rate and time left of a training run."""

    def __init__(self, console: "Console", bars: Progress | None) -> None:
        self._console = console
        self._bars = bars
        self._task: TaskID | None = None
        self._values: dict[str, float] = {}
        self._steps = self._batch = 0
        self._work: Callable[[float], float] = float
        self._start: tuple[float, int] | None = None
        self._last: tuple[float, int] | None = None
        self._trained_steps, self._training_seconds = 0, 0.0
        self._minutes: float | None = None
        self._inspection: TaskID | CountLines | None = None
        self._stages: dict[str, TaskID | CountLines] = {}
        self._shown, self._shown_step = 0.0, -1
        self._unshown: frozenset[str] = frozenset()

    def note(self, line: str) -> None:
        """Print a line."""
        self._say(line)

    def files(self, done: int, total: int) -> None:
        """Show how many files were inspected before training."""
        if self._inspection is None:
            self._inspection = (
                CountLines(INSPECTING, self._console.file)
                if self._bars is None
                else self._bars.add_task(INSPECTING, total=total, count=f"{total:,} files")
            )
        if isinstance(self._inspection, CountLines):
            self._inspection.show(done, total)
        elif self._bars is not None:
            self._bars.update(self._inspection, completed=done, visible=done < total)

    def begin(self, plan: "Plan") -> None:
        """Print model, data and number of steps."""
        train = plan.train
        self._steps, self._batch = plan.steps, train.batch_size
        self._work = _work_of(plan)
        # Another metric of the same step follows, and one line shows both.
        self._unshown = frozenset() if train.balance == "none" else frozenset({"accuracy"})
        self._minutes = train.budget if train.budget_in == "minutes" else None
        self._say(
            f"{train.model} on {plan.data}: {plan.steps:,} step{'s' * (plan.steps != 1)} of "
            f"{train.batch_size} images"
        )
        if self._bars is not None:
            self._task = self._bars.add_task("", total=1.0, count=f"0/{plan.steps:,}")

    def metric(self, metric: "Metric") -> None:
        """Show one number of the log."""
        self._values[f"{metric['split']} {metric['name']}"] = metric["value"]
        now, step = time.monotonic(), metric["step"]
        if self._start is None:
            self._start = (now, step)
        if metric["split"] == "train" and self._last is not None:
            # The time before a line about held-out images was spent on evaluating them.
            self._training_seconds += now - self._last[0]
            self._trained_steps += step - self._last[1]
        self._last = (now, step)
        self._compare(now, step)
        text = self._line()
        if self._bars is not None and self._task is not None:
            count = f"{step:,}/{self._steps:,}"
            done = self._worked(step)
            self._bars.update(self._task, completed=done, description=text, count=count)
        elif metric["split"] == "validation":
            if metric["name"] in HELD_OUT and metric["name"] not in self._unshown:
                self._say_held_out(step, text, metric)
        elif step != self._shown_step and now - self._shown > PLAIN_SECONDS:
            self._say_step(step, f"{text}{self._estimate(now, step)}")

    def stage(self, name: str, done: int, total: int) -> None:
        """Show how far a stage after training is."""
        if name not in self._stages and self._bars is None:
            self._say(name if total == 1 else f"{name}: {total:,} images")
            self._stages[name] = CountLines(name, self._console.file)
        elif name not in self._stages and self._bars is not None:
            self._stages[name] = self._bars.add_task(name, total=total, count="")
        shown = self._stages[name]
        if isinstance(shown, CountLines):
            shown.show(done, total)
        elif self._bars is not None:
            self._bars.update(shown, completed=done, count=f"{done:,}/{total:,}")

    def _line(self) -> str:
        names = {
            "train loss": "loss {:.3f}",
            **{f"validation {name}": text for name, text in HELD_OUT.items()},
            "train lr": "lr {:.2g}",
        }
        parts = [text.format(self._values[k]) for k, text in names.items() if k in self._values]
        if self._trained_steps:
            speed = self._trained_steps * self._batch / self._training_seconds
            parts.append(f"{speed:,.0f} images/s")
        return ", ".join(parts)

    def _estimate(self, now: float, step: int) -> str:
        if self._start is None or step <= self._start[1]:
            return ""
        before, done = self._worked(self._start[1]), self._worked(step)
        return _minutes((1 - done) * (now - self._start[0]) / (done - before))

    def _compare(self, now: float, step: int) -> None:
        """Print the new estimate if all steps take longer than the minutes of the budget."""
        if self._minutes is None or self._start is None or now - self._start[0] < PLAIN_SECONDS:
            return
        before = self._worked(self._start[1])
        if before >= 1:  # the first line is about the last step
            return
        done = (self._worked(step) - before) / (1 - before)
        needed = (now - self._start[0]) / 60 / done if done else 0.0
        if needed > SLOWER * self._minutes * (1 - before):
            self._say(
                f"the machine is slower than before: the {self._steps:,} steps take about "
                f"{needed:.1f} min, not {self._minutes * (1 - before):.1f}; all of them are made"
            )
            self._minutes = needed / (1 - before)

    def _worked(self, step: int) -> float:
        return self._work(step / self._steps)

    def _say_held_out(self, step: int, text: str, metric: "Metric") -> None:
        if step == self._shown_step:  # the loss of this step is on a line already
            self._say(f"{HELD_OUT[metric['name']].format(metric['value'])} after step {step:,}")
        else:
            self._say_step(step, text)

    def _say_step(self, step: int, text: str) -> None:
        self._shown_step = step
        self._say(f"step {step:,} of {self._steps:,}: {text}")

    def _say(self, text: str) -> None:
        self._shown = time.monotonic()
        self._console.print(visible_cell(text), soft_wrap=True)


def _work_of(plan: "Plan") -> Callable[[float], float]:
    """Part of the work by part of the steps: steps with small images are less work."""
    if not plan.train.small_sizes:
        return float
    from vitlab.models.config import pair
    from vitlab.training.progressive_resize import share_of_time

    full = min(pair(plan.model["image_size"]))
    whole = share_of_time(plan.train, full)
    return lambda done: share_of_time(plan.train, full, done=done) / whole


@contextmanager
def run_progress(
    *, json: bool, notes: bool = True, title: str | None = None
) -> "Iterator[Watcher]":
    """Callbacks that show a training run, on stderr if stdout is for JSON."""
    from vitlab.jobs.training_run import Watcher

    stream = sys.stderr if json else sys.stdout
    columns = (BarColumn(), TextColumn("{task.fields[count]}", markup=False), TimeRemainingColumn())
    with _bars(stream, *columns, _name()) as bars:
        view = RunView(EscapingConsole(file=stream) if bars is None else bars.console, bars)
        if title is not None:
            view.note(title)
        watcher = Watcher(begin=lambda plan, files: view.begin(plan), metric=view.metric)
        yield (
            replace(watcher, files=view.files, note=view.note, stage=view.stage)
            if notes
            else watcher
        )


def run_with_progress(
    job: "Callable[[Watcher], RunResult]", out: Path, *, json: bool, notes: bool = True
) -> "RunResult":
    """Result of a training job; if it is interrupted, print how to continue and exit."""
    from vitlab.jobs.plan import resume_command

    with run_progress(json=json, notes=notes) as watcher:
        try:
            return job(watcher)
        except Interrupted as stop:
            print_line(f"{stop}; continue: {resume_command(out)}", file=sys.stderr)
            raise typer.Exit(128 + stop.signal) from None
