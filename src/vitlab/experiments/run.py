"""`vitlab experiment`: train every arm with every seed, and conclude."""

import csv
import io
import math
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

from vitlab.config import from_dict, to_dict
from vitlab.data.datasets import DataSource, check_judged, check_split, open_data
from vitlab.errors import ConfigError, DataError, ExperimentStopped, Interrupted, VitlabError
from vitlab.experiments.context import Context
from vitlab.experiments.figures import draw
from vitlab.experiments.findings import Findings
from vitlab.experiments.folder import (
    Record,
    Result,
    check_arms,
    check_folder,
    check_images,
    exact_call,
    exact_command,
    read_result,
    working_in,
)
from vitlab.experiments.page import render
from vitlab.experiments.spec import Arm, Experiment, find
from vitlab.experiments.training import complete, drop_checkpoints, halve, images_of_classes
from vitlab.io.files import write_files, write_json
from vitlab.jobs.train import channels_of, settings_for
from vitlab.jobs.training_run import Watcher
from vitlab.machine.device import best_device, fast_precision
from vitlab.machine.world import World, by_first, open_world
from vitlab.registry import DATASETS
from vitlab.report.figures.table import KINDS
from vitlab.report.plots import check_matplotlib, rendered, styled
from vitlab.training.loop import Stop

# Results as CSV: a line for each training, and a line for each difference.

TRAINING = (
    *("arm", "seed", "value", "held_out", "images", "parameters", "forward", "steps"),
    *("images_seen", "pflops", "minutes"),
)
DIFFERENCE = ("arm", "against", "mean", "low", "high", "seeds", "over", "p", "chosen", "verdict")


def trainings_csv(found: Findings) -> str:
    """Write every training with its result and cost."""
    return _csv(TRAINING, ([getattr(r, name) for name in TRAINING] for r in found.results))


def differences_csv(found: Findings) -> str:
    """Write every difference with its interval."""
    rows = (
        [*(getattr(item, name) for name in DIFFERENCE), " ".join(item.beside)]
        for item in found.differences
    )
    return _csv((*DIFFERENCE, "beside"), rows)


def _csv(names: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    writer.writerows(rows)
    return text.getvalue()


def write(found: Findings) -> None:
    """`results.csv`, `differences.csv`, `results.json`, figures as PNG and SVG, `report.html`."""
    figures: dict[str, bytes] = {}
    with styled():
        for name, figure in draw(found).items():
            figures |= {f"{name}.{kind}": rendered(figure, kind) for kind in KINDS}
    page = render(found, {name: data for name, data in figures.items() if name.endswith(".svg")})
    write_files(found.folder, {**figures, "report.html": page.encode(errors="replace")})
    write_tables(found)


def write_tables(found: Findings) -> None:
    """Write only the tables, which is fast."""
    contents = {
        "results.csv": trainings_csv(found).encode(),
        "differences.csv": differences_csv(found).encode(),
    }
    write_files(found.folder, contents)
    write_json(found.folder / "results.json", found.to_dict())


# SIGINT and SIGTERM between trainings: an exception at once, since every file is written whole.


class StopNow(KeyboardInterrupt):
    """A process of the experiment received SIGINT or SIGTERM."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.signal = number


@contextmanager
def signals_raise(world: World) -> Iterator[Stop]:
    """Raise `StopNow` on either signal; training itself catches them and saves its state first.

    Several processes stop together, before the next training.
    """
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def note(number: int, frame: FrameType | None) -> None:
        if world.size == 1:
            raise StopNow(number)
        stop.signal = number

    caught: tuple[int, ...] = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, note) for number in caught}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


Watching = Callable[[str], AbstractContextManager[Watcher]]
"""Factory of the progress callbacks of one training, by its title."""
SMOKE_DATA, SMOKE_SEEDS = "sample", 2
DATA = "cifar10"


@contextmanager
def unwatched(title: str) -> Iterator[Watcher]:
    """No-op progress callbacks."""
    yield Watcher()


def experiment(
    what: str | os.PathLike[str] | Experiment,
    *,
    out: str | os.PathLike[str],
    data: str | os.PathLike[str] | None = None,
    seeds: int | None = None,
    minutes: float | None = None,
    smoke: bool = False,
    arms: Sequence[str] | None = None,
    download: bool = False,
    watching: Watching = unwatched,
) -> Findings:
    """Train every arm with every seed, and write tables, figures and a page to `out`.

    `what` is a name, a TOML file or an `Experiment`; `minutes` are those of one training; `arms`
    are the names of those to train. Called again with the same arguments, it continues. With
    `smoke`, models and trainings are tiny, for a test of the definition.
    """
    check_matplotlib()
    spec, folder = find(what), Path(out)
    starts = tuple(dict.fromkeys(arm.start for arm in spec.arms if arm.start))
    if arms is not None:
        spec = spec.only(arms)
    record = _decide(
        spec, what, folder=folder, data=data, seeds=seeds, minutes=minutes, smoke=smoke, arms=arms
    )
    world = open_world()
    then = _begun(folder, record, world)
    settled = "" if then is None else then.precision
    precision = world.share(settled or _precision(spec))
    source = _open(record, download)
    images = images_of_classes(source)
    context = Context(
        experiment=spec,
        folder=folder,
        data=record.data,
        source=source,
        smallest_class=min(images),
        minutes=record.minutes,
        smoke=smoke,
        precision=precision,
    )
    resolved = context.check()
    if then is not None:
        check_images(folder, then, images)
        check_arms(folder, then, resolved, context.usual)
        resolved = {**then.settled, **resolved}
    record = replace(record, precision=precision, images=images, settled=resolved, starts=starts)
    with working_in(folder, record, world), signals_raise(world) as stop:
        return _Round(
            context=context, record=record, watching=watching, world=world, stop=stop
        ).run()


def _begun(folder: Path, record: Record, world: World) -> Record | None:
    """Record of the experiment that this one continues; None: it is new."""

    def read() -> dict[str, Any] | None:
        then = check_folder(folder, record)
        return None if then is None else to_dict(then)

    found = by_first(read, world)
    return None if found is None else from_dict(Record, found)


def _decide(
    spec: Experiment,
    what: str | os.PathLike[str] | Experiment,
    *,
    folder: Path,
    data: str | os.PathLike[str] | None,
    seeds: int | None,
    minutes: float | None,
    smoke: bool,
    arms: Sequence[str] | None,
) -> Record:
    given = None if data is None else os.fspath(data)
    if smoke and minutes is not None:
        raise ConfigError(f"minutes {minutes:g} and smoke: trying it out takes a few steps")
    if seeds is not None and seeds < 1:
        raise ConfigError(f"seeds {seeds} is not at least 1")
    if minutes is not None and not 0 < minutes < math.inf:
        raise ConfigError(f"minutes {minutes:g} is not a positive number")
    if minutes is not None:
        spec = replace(spec, minutes=minutes)  # the settings that they would override are rejected
    begin = exact_call if isinstance(what, Experiment) else exact_command
    named = spec.name if isinstance(what, Experiment) else os.fspath(what)
    chosen = given or (SMOKE_DATA if smoke else DATA)
    if chosen not in DATASETS and os.path.exists(os.path.expanduser(chosen)):
        chosen = os.path.abspath(os.path.expanduser(chosen))
    return Record(
        experiment=spec,
        data=chosen,
        minutes=None if smoke else minutes or spec.minutes,
        smoke=smoke,
        seeds=seeds or (SMOKE_SEEDS if smoke else spec.seeds),
        command=begin(
            named, folder, data=given, seeds=seeds, minutes=minutes, smoke=smoke, arms=arms
        ),
    )


def _precision(spec: Experiment) -> str:
    """Precision of the recipe; for `auto`, the one that is fast on this machine."""
    found = settings_for(spec.recipe, spec.changes).precision
    return fast_precision(best_device()) if found == "auto" else found


def _open(record: Record, download: bool) -> DataSource:
    spec = record.experiment
    channels = channels_of(spec.changes)
    source = open_data(record.data, download=download, channels=channels)
    if source.task != "single-label":
        raise DataError(f"{source.name} is {source.task} data; valid: one class for each image")
    if source.open_test is None:
        raise DataError(f"{source.name} has no test images; valid: data with train and test images")
    if settings_for(spec.recipe, spec.changes).judge_all:
        check_judged(source)
        if source.divided:
            check_split(
                source, {"to learn from": source.open_train(), "to test": source.open_test()}
            )
    return halve(record.data, source) if spec.measure == "few-shot" else source


class _Round:
    """All trainings, seed by seed over all arms: an interrupted experiment is still balanced."""

    def __init__(
        self, *, context: Context, record: Record, watching: Watching, world: World, stop: Stop
    ) -> None:
        self.context, self.record, self.watching = context, record, watching
        self.world, self.stop = world, stop
        self.failures: dict[str, str] = {}

    def run(self) -> Findings:
        """Run unfinished trainings; write tables after each one, and the page after each seed."""
        try:
            done = 0
            for arm, seed in self._trainings:
                if received := self.world.highest([self.stop.signal or 0])[0]:
                    raise StopNow(received)
                if seed != done:
                    self._write(write)
                    done = seed
                self._complete(arm, seed)
            return self._write(write)
        except (Interrupted, StopNow) as stop:
            found = self._findings()
            if found.results:
                by_first(lambda: write(found), self.world)
            raise ExperimentStopped(stop.signal, len(found.results), found.trainings) from None

    def _write(self, writer: Callable[[Findings], None]) -> Findings:
        """Findings so far, written by the first process."""
        found = self._findings()
        by_first(lambda: writer(found), self.world)
        return found

    @property
    def _trainings(self) -> list[tuple[Arm, int]]:
        return self.context.experiment.trainings(self.record.seeds)

    def _complete(self, arm: Arm, seed: int) -> None:
        def finished() -> bool:
            if self._result(arm, seed) is None:
                return False
            drop_checkpoints(self.context.place(arm.name, seed))  # a kill may have left them
            return True

        if not by_first(finished, self.world):
            self._try(arm, seed)
            self._write(write_tables)

    def _try(self, arm: Arm, seed: int) -> None:
        number, total = self._trainings.index((arm, seed)) + 1, len(self._trainings)
        try:
            with self.watching(f"[{number} of {total}] {arm.shown}, seed {seed}") as watcher:
                complete(self.context, arm, seed, watcher)
        except Interrupted:
            raise
        except VitlabError as error:
            if self.world.size > 1 and not error.together:
                raise
            self.failures[f"{arm.name}, seed {seed}"] = " ".join(str(error).split())
        except Exception as error:
            if self.world.size > 1:  # the others are still training
                raise
            reason = f"{type(error).__name__}: {error}"
            self.failures[f"{arm.name}, seed {seed}"] = " ".join(reason.split())

    def _findings(self) -> Findings:
        results = by_first(lambda: [to_dict(result) for result in self._results()], self.world)
        return Findings(
            record=self.record,
            folder=self.context.folder,
            results=tuple(from_dict(Result, result) for result in results),
            failures=dict(self.failures),
        )

    def _results(self) -> Iterator[Result]:
        for arm, seed in self._trainings:
            result = self._result(arm, seed)
            if result is not None:
                yield result

    def _result(self, arm: Arm, seed: int) -> Result | None:
        """Stored result; None if it is missing or damaged, which `_try` reports."""
        try:
            return read_result(self.context.place(arm.name, seed))
        except ConfigError:
            return None
