"""What a run asks of the machine: a device, what its options need, and memory."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from vitlab.errors import ConfigError, OutOfMemory
from vitlab.jobs.run_folder import Plan
from vitlab.machine.cores import cores
from vitlab.machine.device import best_device, fast_precision
from vitlab.report.plots import check_matplotlib
from vitlab.training.batch_size import advice, fitting_batch_size
from vitlab.training.config import TrainConfig
from vitlab.training.log import check_tensorboard
from vitlab.training.state import check_compiler

Note = Callable[[str], None]

log = logging.getLogger(__name__)


@contextmanager
def stored_threads(threads: int | None) -> Iterator[None]:
    """Compute with the threads that a run began with, or warn if this machine has fewer.

    On a CPU the number decides in which order products are summed up, and so the last bits.
    """
    here = torch.get_num_threads()
    if threads is not None and threads < 1:
        raise ConfigError(f"config.json: threads {threads} is not at least 1")
    if threads is None or threads == here or best_device().type != "cpu":
        yield
        return
    if threads > cores():
        log.warning(
            "the run began with %d threads and goes on with %d: "
            "the result will not be the same bit for bit",
            *(threads, here),
        )
        yield
        return
    log.warning("the run goes on with %d threads, as it began, not with %d", threads, here)
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(here)


def check_options(config: TrainConfig, device: torch.device, note: Note) -> None:
    """Whether this machine has what the options need."""
    if config.tensorboard:
        check_tensorboard()
    if config.objective is not None:
        check_matplotlib()
    if config.compile:
        note("looking for a compiler; the first step will take a while")
        check_compiler(device)


def with_precision(plan: Plan, device: torch.device, note: Note) -> Plan:
    """The plan with the precision that is fast here, where the recipe leaves it to the machine."""
    if plan.train.precision != "auto":
        return plan
    precision = fast_precision(device)
    if precision == "bfloat16":
        note("bfloat16, which this machine multiplies faster; weights and optimizer in float32")
    return _settled(plan, precision=precision)


def with_fitting_batches(plan: Plan, model: nn.Module, note: Note) -> Plan:
    """The plan with the recipe's batch size, or the largest power of two below it that fits."""
    config = plan.train
    # Not more than the recipe says: its rates were chosen for that.
    fitting = fitting_batch_size(model, config, largest=config.batch_size)
    if fitting is None:
        raise OutOfMemory(1, advice(None))
    note(
        f"batch size {fitting}, the largest up to {config.batch_size} that fits; "
        f"the learning rates stay the recipe's"
    )
    return _settled(plan, batch_size=fitting)


def _settled(plan: Plan, **found: Any) -> Plan:
    """The plan with what was found out about the machine, also in the command that repeats it."""
    told = "".join(f" --set {name}={value}" for name, value in found.items())
    return replace(plan, train=replace(plan.train, **found), command=f"{plan.command}{told}")
