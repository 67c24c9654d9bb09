"""Additional measurements: gradients, cost of an update, accuracy on training images."""

import re
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import torch
from torch import Tensor, nn

from vitlab.classify.classifier import Classifier, load
from vitlab.data.datasets import DataSource
from vitlab.data.images import ImageSet
from vitlab.data.loader import batches_for_evaluation
from vitlab.data.order import generator, seed_for
from vitlab.evaluation.classification import collect
from vitlab.experiments.folder import TRAIN_ACCURACY
from vitlab.jobs.plan import read_plan
from vitlab.jobs.training_run import TrainingRun, Watcher, evaluation_batch
from vitlab.machine.device import best_device
from vitlab.models.cost import PeakMemory
from vitlab.report.run.page import read_metrics
from vitlab.training.step import backward, train_step

# Per-image correctness of a classifier.


def correct_images(
    classifier: Classifier, images: ImageSet, *, broken: dict[Path, str] | None = None
) -> tuple[bool, ...]:
    """True for each correctly classified image; unreadable files are skipped and go to `broken`."""
    device = best_device()
    batches = batches_for_evaluation(
        images,
        batch_size=evaluation_batch(classifier.model.config),
        preprocessing=classifier.preprocessing,
        device=device,
        workers=0,
        broken={} if broken is None else broken,
    )
    outcome = collect(classifier.model.to(device), batches)
    assert outcome.right is not None
    return outcome.right


BLOCK = re.compile(r"encoder\.blocks\.(\d+)\.")
HEAD_STD = 0.02
LEARNT = 2000
"""Number of training images for the training accuracy."""
UPDATES, SMOKE_UPDATES = 7, 1
"""Number of timed updates, after one warm-up."""


def probe(
    names: Sequence[str], run: Path, source: DataSource, smoke: bool
) -> dict[str, list[float]]:
    """Values of each probe; the model is initialised as that of the run."""
    found: dict[str, list[float]] = {}
    if not names:
        return found
    with TemporaryDirectory() as empty:  # in the run's own folder it would resume that run
        job = TrainingRun.prepare(read_plan(run), Path(empty), source, watcher=Watcher())
    try:
        if "cost" in names:
            found["bytes"] = [float(peak_bytes(job))]
            found["seconds"] = [step_seconds(job, SMOKE_UPDATES if smoke else UPDATES)]
        if "gradients" in names:
            found["gradient_of_block"] = first_gradients(job)
            found["gradient_step"], found["gradient"] = logged_gradients(run)
        if "fit" in names:
            found[TRAIN_ACCURACY] = [train_accuracy(job, run)]
    finally:
        job.loader.close()
    return found


def train_accuracy(job: TrainingRun, run: Path) -> float:
    """Accuracy on some of the training images, without augmentation."""
    order = torch.randperm(len(job.train), generator=generator(0, "images learnt from"))
    some = job.train.subset(order[:LEARNT])
    return statistics.fmean(correct_images(load(run), some, broken=job.unreadable))


def first_gradients(job: TrainingRun) -> list[float]:
    """Norm of the gradient of each encoder block's parameters, before the first step.

    The head is drawn at random: the zeros that training starts with pass no gradient on.
    """
    torch.manual_seed(seed_for(job.plan.train.seed, "probe"))
    nn.init.normal_(cast(Any, job.state.model).head.weight, std=HEAD_STD)
    job.state.model.train()
    backward(job.state, job.loader.batch(0), job.plan.train, job.learning.goal.loss)
    scale = job.state.scaler.get_scale()  # 1 except in float16
    squares: dict[int, Tensor] = {}
    for name, parameter in job.state.model.named_parameters():
        match = BLOCK.match(name)
        if match is not None and parameter.grad is not None:
            block, square = int(match[1]), (parameter.grad.double() / scale).square().sum()
            squares[block] = squares[block] + square if block in squares else square
    job.state.model.zero_grad(set_to_none=True)
    return [float(squares[block].sqrt()) for block in sorted(squares)]


def logged_gradients(run: Path) -> tuple[list[float], list[float]]:
    """Steps of the log, and the norm of the whole gradient in each, before clipping."""
    lines = [p for p in read_metrics(run / "metrics.jsonl") if p.name == "grad_norm"]
    return [float(point.step) for point in lines], [point.value for point in lines]


def peak_bytes(job: TrainingRun) -> int:
    """Most memory that the forward and backward pass of a batch hold at a time."""
    batch = job.loader.batch(0)
    with PeakMemory() as memory:
        backward(job.state, batch, job.plan.train, job.learning.goal.loss)
    job.state.model.zero_grad(set_to_none=True)
    return memory.peak


def step_seconds(job: TrainingRun, updates: int) -> float:
    """Median time of an update."""
    batch, times = job.loader.batch(0), []
    for _ in range(1 + updates):
        begin = time.monotonic()
        train_step(job.state, batch, job.plan.train, lr_factor=0.0, loss_of=job.learning.goal.loss)
        times.append(time.monotonic() - begin)
    return statistics.median(times[1:])
