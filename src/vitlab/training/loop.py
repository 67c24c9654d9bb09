"""`fit`, the story of a run: resume, step, log, evaluate, save, and stop when asked."""

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

from vitlab.config import to_dict
from vitlab.data.loading.batch import Batch
from vitlab.data.random import seed_for
from vitlab.errors import Interrupted
from vitlab.training.checkpoint import (
    PLAN,
    Progress,
    checkpoint_path,
    prune_checkpoints,
    resume,
    save_checkpoint,
)
from vitlab.training.compute import Meter
from vitlab.training.config import TrainConfig
from vitlab.training.ema import averaged
from vitlab.training.log import EventLog, MetricLog, Watch
from vitlab.training.loss import ACCURACY, Evaluate, Goal
from vitlab.training.optim import factor
from vitlab.training.progressive_resize import shrink, size_at
from vitlab.training.state import TrainState
from vitlab.training.step import StepStats, train_step
from vitlab.training.trainable import head_alone, set_learning, train_mode

# SIGINT and SIGTERM as a flag: the step under way ends, the state is saved, then we go.


class Stop:
    """Whether, and by which signal, the run was asked to stop."""

    signal: int | None = None


@contextmanager
def stop_signals() -> Iterator[Stop]:
    """Catch the signals meanwhile; outside of the main thread nothing can be caught."""
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def note(number: int, frame: FrameType | None) -> None:
        if stop.signal is not None:
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
"""Lines about training that a run leaves, at the most."""


@runtime_checkable
class Loader(Protocol):
    """Batches by number: what is random about one follows from the seed and its number alone."""

    broken: dict[Path, str]

    @property
    def steps_per_epoch(self) -> float:
        """Batches in which every image stands once."""
        ...

    def batch(self, step: int) -> Batch:
        """The batch of update number `step`, from 0."""
        ...

    def close(self) -> None:
        """End what works in the background."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class RunFiles:
    """Where a run keeps what it writes while it runs."""

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

    @property
    def tensorboard(self) -> Path:
        return self.folder / "tensorboard"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Book:
    """What goes into a checkpoint besides the state."""

    settings: dict[str, Any]
    log: MetricLog
    loader: Loader
    files: RunFiles

    def save(self, path: Path, state: TrainState) -> None:
        broken = {str(image): why for image, why in self.loader.broken.items()}
        progress = Progress(settings=self.settings, metrics=self.log.flush(), broken=broken)
        save_checkpoint(path, state, progress)


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
) -> None:
    """Train `state` up to `steps` updates, from its latest checkpoint if there is one.

    `teacher_flops` is what a teacher inside the loader costs for each image; `plan` is what else
    must not change until the run ends.
    """
    files.checkpoints.mkdir(parents=True, exist_ok=True)
    settings = {**to_dict(config), "steps": steps, PLAN: dict(plan or {})}
    progress = resume(files.checkpoints, state, settings)
    loader.broken.update({Path(path): why for path, why in progress.broken.items()})
    events = EventLog(files.tensorboard, after_step=state.step) if config.tensorboard else None
    log = MetricLog(files.metrics, before=progress.metrics, watch=watch, events=events)
    book = _Book(settings=settings, log=log, loader=loader, files=files)
    meter = Meter(config, teacher_flops=teacher_flops)
    looks = min(config.evaluations, steps)
    evaluation_steps = {round(steps * (i + 1) / looks) for i in range(looks)}
    try:
        with stop_signals() as stop:
            while state.step < steps and not _out_of_patience(state, config):
                begin = time.monotonic()
                stats = _update(config, state, loader, steps, goal, meter)
                _log_training(log, state, stats, loader, steps)
                if evaluate is not None and state.step in evaluation_steps:
                    _evaluate(state, evaluate, book, goal)
                state.seconds += time.monotonic() - begin
                ends = state.step == steps or _out_of_patience(state, config)
                if ends or stop.signal is not None or state.step % config.checkpoint_every == 0:
                    book.save(checkpoint_path(files.checkpoints, state.step), state)
                    prune_checkpoints(files.checkpoints, config.keep)
                if stop.signal is not None:
                    raise Interrupted(stop.signal, state.step, steps)
    finally:
        log.close()


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
    rate = factor(config.schedule, state.step, steps)
    stats = train_step(state, batch, config, lr_factor=rate, loss_of=goal.loss)
    state.images += len(batch.images)
    state.flops += meter.flops(state.model, batch.images.shape, head_alone=alone)
    return stats


def _log_training(
    log: MetricLog, state: TrainState, stats: StepStats, loader: Loader, steps: int
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


def _evaluate(state: TrainState, evaluate: Evaluate, book: _Book, goal: Goal) -> None:
    """Look at the held-out images, and keep these weights unless earlier ones are clearly better.

    The rate falls and weights are averaged, so of two that few images cannot tell apart the later
    are the better ones.
    """
    epoch = state.step / book.loader.steps_per_epoch
    with averaged(state.model, state.ema) as model:
        measured = dict(evaluate(model))
    for name, value in measured.items():
        book.log.write(step=state.step, epoch=epoch, split="validation", name=name, value=value)
    state.since_best += 1
    value = measured[goal.chosen_by]
    state.highest = max(state.highest, value)
    if value >= state.highest - goal.noise(state.highest):
        state.best, state.best_step, state.since_best = value, state.step, 0
        book.save(book.files.best, state)


def _out_of_patience(state: TrainState, config: TrainConfig) -> bool:
    return bool(config.patience) and state.since_best >= config.patience
