"""How a training run goes: a live line on a terminal, plain lines elsewhere."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING

from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from vitlab.cli.output import EscapingConsole, visible_cell

if TYPE_CHECKING:
    from vitlab.jobs.run_folder import Plan
    from vitlab.training.log import Metric

WATCHED = {
    "accuracy": "held-out accuracy {:.1%}",
    "balanced": "held-out balanced accuracy {:.1%}",
    "map": "held-out mAP {:.1%}",
    "r2": "held-out R2 {:.3f}",
}
"""What is said of the held-out images."""
PLAIN_EVERY = 10.0
"""Seconds between two plain lines."""


class LiveView:
    """Loss, accuracy, speed and rate of the run, and when it will end."""

    def __init__(self, console: EscapingConsole, bar: Progress | None) -> None:
        self._console = console
        self._bar = bar
        self._task: TaskID | None = None
        self._values: dict[str, float] = {}
        self._steps = self._batch = 0
        self._work: Callable[[float], float] = float
        self._start: tuple[float, int] | None = None
        self._last: tuple[float, int] | None = None
        self._learned, self._learning = 0, 0.0
        self._looking: tuple[float, TaskID | None] | None = None
        self._shown = 0.0

    def note(self, line: str) -> None:
        """Say something before the first step."""
        self._say(line)

    def files(self, done: int, total: int) -> None:
        """Say how many files were looked at, before anything is learnt from them."""
        now = time.monotonic()
        if self._looking is None:
            name = "looking at the images"
            task = None
            if self._bar is not None:
                task = self._bar.add_task(name, total=total, count=f"{total:,} files")
            self._looking, self._shown = (now, task), now
        start, task = self._looking
        if self._bar is not None and task is not None:
            self._bar.update(task, completed=done, visible=done < total)
        elif 0 < done < total and now - self._shown > PLAIN_EVERY:
            left = (now - start) * (total - done) / done
            self._say(f"looking at the images: {done:,} of {total:,}{_minutes(left)}")

    def begin(self, plan: "Plan") -> None:
        """Say what is going to happen."""
        train = plan.train
        self._steps, self._batch = plan.steps, train.batch_size
        self._work = _work_of(plan)
        self._say(
            f"{train.model} on {plan.data}: {plan.steps:,} steps of {train.batch_size} images"
        )
        if self._bar is not None:
            self._task = self._bar.add_task("", total=1.0, count=f"0/{plan.steps:,}")

    def metric(self, metric: "Metric") -> None:
        """Take in one number of the log."""
        self._values[f"{metric['split']} {metric['name']}"] = metric["value"]
        now, step = time.monotonic(), metric["step"]
        if self._start is None:
            self._start = (now, step)
        if metric["split"] == "train" and self._last is not None:
            # The time before a line about held-out images went into looking at them.
            self._learning += now - self._last[0]
            self._learned += step - self._last[1]
        self._last = (now, step)
        text = self._line()
        if self._bar is not None and self._task is not None:
            count = f"{step:,}/{self._steps:,}"
            done = self._worked(step)
            self._bar.update(self._task, completed=done, description=text, count=count)
        elif metric["split"] == "validation" and metric["name"] in WATCHED:
            self._say(f"step {step:,} of {self._steps:,}: {text}")
        elif now - self._shown > PLAIN_EVERY:
            self._say(f"step {step:,} of {self._steps:,}: {text}{self._estimate(now, step)}")

    def _line(self) -> str:
        names = {
            "train loss": "loss {:.3f}",
            **{f"validation {name}": text for name, text in WATCHED.items()},
            "train lr": "rate {:.2g}",
        }
        parts = [text.format(self._values[k]) for k, text in names.items() if k in self._values]
        if self._learned:
            parts.append(f"{self._learned * self._batch / self._learning:,.0f} images/s")
        return ", ".join(parts)

    def _estimate(self, now: float, step: int) -> str:
        if self._start is None or step <= self._start[1]:
            return ""
        before, done = self._worked(self._start[1]), self._worked(step)
        return _minutes((1 - done) * (now - self._start[0]) / (done - before))

    def _worked(self, step: int) -> float:
        return self._work(step / self._steps)

    def _say(self, text: str) -> None:
        self._shown = time.monotonic()
        self._console.print(visible_cell(text), soft_wrap=True)


def _work_of(plan: "Plan") -> Callable[[float], float]:
    """Part of the work by part of the steps: small images are less of it."""
    if not plan.train.small_sizes:
        return float
    from vitlab.models.config import pair
    from vitlab.training.progressive_resize import share_of_time

    full = min(pair(plan.model["image_size"]))
    whole = share_of_time(plan.train, full)
    return lambda done: share_of_time(plan.train, full, done=done) / whole


def _minutes(seconds: float) -> str:
    return f", {seconds / 60:.1f} min left"


@contextmanager
def live_view(stream: IO[str]) -> Iterator[LiveView]:
    """Somebody to tell how a run goes, as long as it goes."""
    console = EscapingConsole(file=stream)
    if not console.is_terminal:
        yield LiveView(console, None)
        return
    columns = (
        BarColumn(),
        TextColumn("{task.fields[count]}", markup=False),
        TimeRemainingColumn(),
        TextColumn("{task.description}", markup=False),
    )
    with Progress(*columns, console=console) as bar:
        yield LiveView(console, bar)
