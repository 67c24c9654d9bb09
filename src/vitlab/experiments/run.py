"""`vitlab experiment`: every arm with every seed, and what the numbers say."""

import math
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType

from vitlab.data.datasets import DataSource, open_data
from vitlab.errors import ConfigError, DataError, ExperimentStopped, Interrupted, VitlabError
from vitlab.experiments.context import Lab
from vitlab.experiments.findings import Findings
from vitlab.experiments.folder import (
    Record,
    check_arms,
    check_folder,
    check_images,
    exact_call,
    exact_command,
    working_in,
)
from vitlab.experiments.read import find
from vitlab.experiments.result import Result, read_result
from vitlab.experiments.spec import Arm, Experiment
from vitlab.experiments.start import halve, images_of_classes
from vitlab.experiments.training import complete, drop_checkpoints
from vitlab.experiments.write import write, write_tables
from vitlab.jobs.run import Watcher
from vitlab.jobs.run_data import check_judged, check_split
from vitlab.jobs.train import channels_of, settings_for
from vitlab.machine.device import best_device, fast_precision
from vitlab.registry import DATASETS
from vitlab.report.plots import check_matplotlib

# SIGINT and SIGTERM between trainings: an exception at once, since every file is written whole.


class StopNow(KeyboardInterrupt):
    """Somebody asked the process to end."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.signal = number


@contextmanager
def signals_raise() -> Iterator[None]:
    """Raise `StopNow` on either signal; training itself catches them and saves its state first."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        raise StopNow(number)

    caught: tuple[int, ...] = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, stop) for number in caught}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


Watching = Callable[[str], AbstractContextManager[Watcher]]
"""Somebody to tell how one training goes, by what it is called."""
SMOKE_DATA, SMOKE_SEEDS = "sample", 2
DATA = "cifar10"


@contextmanager
def unwatched(title: str) -> Iterator[Watcher]:
    """Nobody looks."""
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
    are the names of those that are wanted. Called again with the same arguments, it goes on where
    it was. With `smoke`, models and trainings are as small as can be, to try it out.
    """
    check_matplotlib()
    spec, folder = find(what), Path(out)
    starts = tuple(dict.fromkeys(arm.start for arm in spec.arms if arm.start))
    if arms is not None:
        spec = spec.only(arms)
    record = _decide(
        spec, what, folder=folder, data=data, seeds=seeds, minutes=minutes, smoke=smoke, arms=arms
    )
    then = check_folder(folder, record)
    precision = _precision(spec) if then is None or not then.precision else then.precision
    source = _open(record, download)
    images = images_of_classes(source)
    lab = Lab(
        experiment=spec,
        folder=folder,
        data=record.data,
        source=source,
        smallest_class=min(images),
        minutes=record.minutes,
        smoke=smoke,
        precision=precision,
    )
    settled = lab.check()
    if then is not None:
        check_images(folder, then, images)
        check_arms(folder, then, settled, lab.usual)
        settled = {**then.settled, **settled}
    record = replace(record, precision=precision, images=images, settled=settled, starts=starts)
    with working_in(folder, record), signals_raise():
        return _Round(lab=lab, record=record, watching=watching).run()


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
        spec = replace(spec, minutes=minutes)  # what they would override is refused
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
    """The recipe's; where it leaves it to the machine, what is fast on this one."""
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
    """All trainings, one seed of every arm after the other: cut short, it is still balanced."""

    def __init__(self, *, lab: Lab, record: Record, watching: Watching) -> None:
        self.lab, self.record, self.watching = lab, record, watching
        self.failures: dict[str, str] = {}

    def run(self) -> Findings:
        """Do what is left; tables are written after each training, all of it after each seed."""
        try:
            done = 0
            for arm, seed in self._trainings:
                if seed != done:
                    write(self._findings())
                    done = seed
                self._complete(arm, seed)
            write(self._findings())
        except (Interrupted, StopNow) as stop:
            found = self._findings()
            if found.results:
                write(found)
            raise ExperimentStopped(stop.signal, len(found.results), found.trainings) from None
        return self._findings()

    @property
    def _trainings(self) -> list[tuple[Arm, int]]:
        return self.lab.experiment.trainings(self.record.seeds)

    def _complete(self, arm: Arm, seed: int) -> None:
        if self._result(arm, seed) is not None:
            drop_checkpoints(self.lab.place(arm.name, seed))  # a kill may have left them
            return
        self._try(arm, seed)
        write_tables(self._findings())

    def _try(self, arm: Arm, seed: int) -> None:
        number, total = self._trainings.index((arm, seed)) + 1, len(self._trainings)
        try:
            with self.watching(f"[{number} of {total}] {arm.shown}, seed {seed}") as watcher:
                complete(self.lab, arm, seed, watcher)
        except Interrupted:
            raise
        except VitlabError as error:
            self.failures[f"{arm.name}, seed {seed}"] = " ".join(str(error).split())
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            self.failures[f"{arm.name}, seed {seed}"] = " ".join(reason.split())

    def _findings(self) -> Findings:
        return Findings(
            record=self.record,
            folder=self.lab.folder,
            results=tuple(self._results()),
            failures=dict(self.failures),
        )

    def _results(self) -> Iterator[Result]:
        for arm, seed in self._trainings:
            result = self._result(arm, seed)
            if result is not None:
                yield result

    def _result(self, arm: Arm, seed: int) -> Result | None:
        """None of one that is not there or damaged, which `_try` reports."""
        try:
            return read_result(self.lab.place(arm.name, seed))
        except ConfigError:
            return None
