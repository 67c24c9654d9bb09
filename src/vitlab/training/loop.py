"""`fit`, the story of a run: resume, step, log, evaluate, save, and stop on a signal."""

import math
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Protocol, runtime_checkable

import torch

from vitlab.config import flat, to_dict
from vitlab.data.loader import Batch
from vitlab.data.order import seed_for
from vitlab.errors import Interrupted
from vitlab.machine.world import World, launched
from vitlab.training.checkpoint import (
    PLAN,
    Progress,
    checkpoint_path,
    prune_checkpoints,
    resume,
    save_checkpoint,
)
from vitlab.training.config import TrainConfig
from vitlab.training.loggers import Log, LoggedRun, Loggers, MetricLog, NoLog, Watch
from vitlab.training.loss import ACCURACY, Evaluate, Goal
from vitlab.training.optim import factor, low_from
from vitlab.training.progressive_resize import shrink, size_at
from vitlab.training.state import TrainState, averaged
from vitlab.training.step import Meter, StepStats, train_step
from vitlab.training.trainable import head_alone, set_learning, train_mode

# SIGINT and SIGTERM set a flag: the current step ends, and the state is saved before exit.


class Stop:
    """Signal that the run received; None: none."""

    signal: int | None = None


@contextmanager
def stop_signals(*, repeated: bool) -> Iterator[Stop]:
    """Catch the signals in this block; outside of the main thread nothing can be caught.

    A second one ends the process at once, unless `repeated`: a launcher passes on what a terminal
    or a job scheduler has sent to every process already.
    """
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def note(number: int, frame: FrameType | None) -> None:
        if stop.signal is not None and not repeated:
            signal.signal(number, before[number])
            signal.raise_signal(number)
        stop.signal = number

    caught: tuple[int, ...] = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.getsignal(number) for number in caught}
    for number in before:
        signal.signal(number, note)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


LOG_LINES = 200
"""Maximum number of logged training steps of a run."""
WORSE = 1.25
"""Held-out loss, relative to the lowest, above which weights with a similar accuracy are worse."""


@runtime_checkable
class Loader(Protocol):
    """Batches by number; their randomness depends on the seed and the number alone."""

    broken: dict[Path, str]

    @property
    def steps_per_epoch(self) -> float:
        """Number of batches that contain every image once."""
        ...

    def batch(self, step: int) -> Batch:
        """The batch of update number `step`, from 0."""
        ...

    def close(self) -> None:
        """Stop background processes."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class RunFiles:
    """Paths of the files that a run writes during training."""

    folder: Path

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    @property
    def best(self) -> Path:
        return self.checkpoints / "best.safetensors"

    @property
    def metrics(self) -> Path:
        return self.folder / "metrics.jsonl"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Book:
    """Content of a checkpoint besides the state."""

    settings: dict[str, Any]
    log: Log
    loader: Loader
    files: RunFiles

    def save(self, path: Path, state: TrainState) -> None:
        broken = {str(image): why for image, why in self.loader.broken.items()}
        progress = Progress(settings=self.settings, metrics=self.log.flush(), broken=broken)
        save_checkpoint(path, state, progress)

    def prune(self, state: TrainState, keep: int) -> None:
        """Remove all numbered checkpoints but the last."""
        if state.world.rank == 0:
            prune_checkpoints(self.files.checkpoints, keep)


def fit(
    config: TrainConfig,
    state: TrainState,
    loader: Loader,
    *,
    steps: int,
    evaluate: Evaluate | None,
    files: RunFiles,
    watch: Watch,
    goal: Goal = ACCURACY,
    teacher_flops: int = 0,
    plan: Mapping[str, Any] | None = None,
    first: bool = False,
) -> None:
    """Train `state` up to `steps` updates, from its latest checkpoint if there is one.

    `teacher_flops` is the cost per image of a teacher inside the loader; `plan` holds further
    values that must not change when the run is resumed. With `first` the weights before step 1 are
    evaluated too.
    """
    world, first_process = state.world, state.world.rank == 0
    if first_process:
        files.checkpoints.mkdir(parents=True, exist_ok=True)
    settings = {**to_dict(config), "steps": steps, PLAN: dict(plan or {})}
    progress = resume(files.checkpoints, state, settings)
    loader.broken.update({Path(path): why for path, why in progress.broken.items()})
    log: Log = NoLog()
    if first_process:
        run = LoggedRun(folder=files.folder, step=state.step, settings=dict(flat(settings)))
        loggers = Loggers(config.all_loggers, run)
        log = MetricLog(files.metrics, before=progress.metrics, watch=watch, loggers=loggers)
    book = _Book(settings=settings, log=log, loader=loader, files=files)
    together, meter = _Together(loader, world), Meter(config, teacher_flops=teacher_flops)
    evaluations = min(config.evaluations, steps)
    evaluation_steps = {round(steps * (i + 1) / evaluations) for i in range(evaluations)}
    counted_from = low_from(config.schedule, steps)
    try:
        with stop_signals(repeated=launched()) as stop:
            if first and evaluate is not None and not state.step:
                _evaluate(state, evaluate, book, goal, counted=False)
            while state.step < steps and not _out_of_patience(state, config):
                begin = time.monotonic()
                stats = _update(config, state, loader, steps, goal, meter)
                _log_training(log, state, stats, loader, steps)
                if evaluate is not None and state.step in evaluation_steps:
                    _evaluate(state, evaluate, book, goal, counted=state.step > counted_from)
                state.seconds += time.monotonic() - begin
                ends = state.step == steps or _out_of_patience(state, config)
                signalled = together.signal(stop)
                if ends or signalled or state.step % config.checkpoint_every == 0:
                    book.save(checkpoint_path(files.checkpoints, state.step), state)
                    book.prune(state, config.keep)
                if signalled:
                    world.wait()  # a launcher stops processes soon after the first of them ended
                    raise Interrupted(signalled, state.step, steps)
    finally:
        log.close(finished=state.step == steps or _out_of_patience(state, config))


class _Together:
    """Facts that all processes learn after a step: signals, and files that cannot be read."""

    def __init__(self, loader: Loader, world: World) -> None:
        self.loader, self.world = loader, world
        self.known = len(loader.broken)

    def signal(self, stop: Stop) -> int:
        """Signal that any process received; 0: none."""
        broken = self.loader.broken
        received, new = self.world.highest([stop.signal or 0, int(len(broken) > self.known)])
        if new:
            for found in self.world.collect({str(path): why for path, why in broken.items()}):
                broken.update({Path(path): why for path, why in found.items()})
        self.known = len(broken)
        return received


def _update(
    config: TrainConfig, state: TrainState, loader: Loader, steps: int, goal: Goal, meter: Meter
) -> StepStats:
    # Dropout and stochastic depth draw from torch's own generator.
    torch.manual_seed(seed_for(config.seed, "model", state.step))
    if config.head_first:
        set_learning(state.model, config, state.step, steps)
    train_mode(state.model)
    batch, alone = loader.batch(state.step), head_alone(config, state.step, steps)
    batch = batch._replace(images=shrink(batch.images, size_at(config, state.step, steps)))
    lr_factor = factor(config.schedule, state.step, steps)
    stats = train_step(state, batch, config, lr_factor=lr_factor, loss_of=goal.loss)
    images = len(batch.images) if state.world.size == 1 else config.batch_size
    state.images += images
    counted = state.model if state.skeleton is None else state.skeleton
    state.flops += meter.flops(counted, (images, *batch.images.shape[1:]), head_alone=alone)
    return stats


def _log_training(
    log: Log, state: TrainState, stats: StepStats, loader: Loader, steps: int
) -> None:
    every = max(steps // LOG_LINES, 1)
    if state.step % every and state.step != steps:
        return
    measured = {
        "loss": stats.loss.item(),
        "grad_norm": stats.grad_norm.item(),
        "lr": max(group["lr"] for group in state.optimizers[0].param_groups),
    }
    epoch = state.step / loader.steps_per_epoch
    for name, value in measured.items():
        if math.isfinite(value):  # a gradient that overflowed in float16 was not used
            log.write(step=state.step, epoch=epoch, split="train", name=name, value=value)


def _evaluate(
    state: TrainState, evaluate: Evaluate, book: _Book, goal: Goal, *, counted: bool
) -> None:
    """Evaluate the held-out images, and keep these weights unless earlier ones are clearly better.

    Of weights that few images cannot distinguish, the latest are kept, since the learning rate
    falls and weights are averaged; but not if their loss is `WORSE` times the lowest, and of equal
    accuracies, or against step 0, the lower loss wins. Only if `counted` does patience count the
    evaluation: at a high learning rate weights are often worse for a while.
    """
    epoch = state.step / book.loader.steps_per_epoch
    with averaged(state.model, state.ema) as model:
        measured = dict(evaluate(model))
    for name, value in measured.items():
        book.log.write(step=state.step, epoch=epoch, split="validation", name=name, value=value)
    state.since_best += counted
    value, loss = measured[goal.chosen_by], measured.get("loss", math.inf)
    state.highest = max(state.highest, value)
    as_good = state.highest - goal.noise(state.highest)
    if value < as_good:
        return
    state.since_best = 0
    clear = state.best < as_good
    strict = value == state.best or not state.best_step
    if clear or loss <= (state.best_loss if strict else WORSE * state.lowest_loss):
        state.best, state.best_loss, state.best_step = value, loss, state.step
        state.lowest_loss = loss if clear else min(loss, state.lowest_loss)
        book.save(book.files.best, state)


def _out_of_patience(state: TrainState, config: TrainConfig) -> bool:
    return bool(config.patience) and state.since_best >= config.patience
