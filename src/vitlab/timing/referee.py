"""Fair timing in isolated, interleaved processes.

A round runs every contestant once, in random order, so that disturbances of the machine affect all
of them; only ratios within a round are compared.
"""

import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from vitlab.errors import InputError

PACKAGE = Path(__file__).resolve().parents[2]
"""Folder that this package is imported from, also by contestants."""
START = (
    "import sys; sys.path[:] = filter(None, sys.path); "
    "import runpy; runpy.run_module('vitlab.timing.process', run_name='__main__')"
)
"""Python's own way to run a module would import whatever lies in the working directory."""


class ContestantFailed(RuntimeError):
    """A contestant's process raised or died."""


@dataclass(frozen=True, kw_only=True)
class Contestant:
    """A process to time: `module:function`, called once, returns the call to be timed."""

    name: str
    factory: str
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One turn of a contestant: a few timed calls."""

    seconds: float
    """Seconds per call, the mean over the turn."""
    asleep: float
    """CPU seconds used between the last turn and this one; expected: none."""
    each: tuple[float, ...] = ()
    """Seconds of each call."""


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Peak resident memory of a process, in bytes."""

    ever: int
    """Peak including imports and the loading of weights."""
    running: int
    """Peak since the process was ready."""


class Process:
    """Handle of a contestant's process, which sleeps in a blocking read between turns."""

    def __init__(self, contestant: Contestant, *, threads: int, paths: Sequence[Path] = ()) -> None:
        self.name = contestant.name
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        self._popen = subprocess.Popen(
            [
                sys.executable,
                "-c",
                START,
                contestant.factory,
                json.dumps(dict(contestant.arguments)),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=_environment(threads, paths),
        )

    def __enter__(self) -> "Process":
        try:
            mistake = self._receive()
            if mistake is not None:
                raise InputError(f"{self.name}: {mistake}")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        with suppress(BrokenPipeError):
            self._popen.stdin.close()
        self._popen.stdout.close()
        self._popen.wait()
        self._errors.close()

    def result(self) -> Any:
        """Return value of one call, as nested lists and numbers."""
        return self._ask("result")

    def turn(self, *, calls: int, warm_up: int = 0) -> Turn:
        """Run `warm_up` untimed calls and `calls` timed ones."""
        reply = self._ask("turn", calls=calls, warm_up=warm_up)
        return Turn(**{**reply, "each": tuple(reply["each"])})

    def memory(self) -> Memory:
        """Peak memory until now."""
        return Memory(**self._ask("memory"))

    def _ask(self, command: str, **arguments: int) -> Any:
        assert self._popen.stdin is not None
        with suppress(BrokenPipeError):  # a process that died is noticed by its silence
            self._popen.stdin.write(json.dumps([command, arguments]).encode() + b"\n")
            self._popen.stdin.flush()
        return self._receive()

    def _receive(self) -> Any:
        assert self._popen.stdout is not None
        line = self._popen.stdout.readline()
        if not line:
            self._errors.seek(0)
            errors = self._errors.read().decode(errors="replace").strip()
            raise ContestantFailed(f"{self.name} died:\n{errors[-3000:]}")
        return json.loads(line)


Round = dict[str, Turn]
"""The turn of each contestant, by name."""


def compete(
    contestants: Iterable[Contestant],
    *,
    rounds: int,
    threads: int,
    seconds: float = 0.5,
    check: Callable[[dict[str, Any]], None] = lambda results: None,
    progress: Callable[[int, int], None] = lambda done, rounds: None,
    seed: int = 0,
    paths: Sequence[Path] = (),
) -> tuple[list[Round], dict[str, Memory]]:
    """Rounds of turns of about `seconds` each, and peak memories.

    `check` gets the return value of each contestant's call, and raises if they do different work.
    `paths` are further folders to import contestants from.
    """
    order = random.Random(seed)
    with ExitStack() as stack:
        processes = [
            stack.enter_context(Process(c, threads=threads, paths=paths)) for c in contestants
        ]
        check({process.name: process.result() for process in processes})
        for process in processes:
            process.turn(calls=1)
        slowest = max(process.turn(calls=1).seconds for process in processes)
        calls = max(1, round(seconds / slowest))
        found: list[Round] = []
        for done in range(rounds):
            progress(done, rounds)
            turns = {
                process.name: process.turn(calls=calls, warm_up=int(slowest < seconds / 2))
                for process in order.sample(processes, len(processes))
            }
            found.append(turns)
        progress(rounds, rounds)
        return found, {process.name: process.memory() for process in processes}


def _environment(threads: int, searched: Sequence[Path]) -> dict[str, str]:
    paths = [str(path) for path in (PACKAGE, *searched)]
    return {
        **os.environ,
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "PYTHONPATH": os.pathsep.join(filter(None, [*paths, os.environ.get("PYTHONPATH")])),
    }


# The machine as a contestant: its peak speed, and whether other work disturbed it.

SGEMM_SIDE = 1536
MACHINE = "sgemm"
BUSY = 1.3
"""Ratio of the slowest to the fastest matrix product from which on a machine counts as busy."""
RESTLESS = 0.05
"""CPU seconds between two turns that are reported; waking and answering takes a fifth of it."""


def machine() -> Contestant:
    """A large product of float32 matrices, as the upper bound of the speed."""
    return Contestant(name=MACHINE, factory="vitlab.timing.referee:sgemm")


def sgemm() -> Callable[[], float]:
    """The product, to be timed."""
    import torch

    left, right = torch.randn(2, SGEMM_SIDE, SGEMM_SIDE)

    def multiply() -> float:
        return float((left @ right)[0, 0])

    return multiply


def disturbances(rounds: Sequence[Round]) -> list[str]:
    """Warnings about the measurement: a busy machine, or contestants that do not sleep."""
    found = []
    limits = [turns[MACHINE].seconds for turns in rounds]
    if max(limits) > BUSY * min(limits):
        slower = max(limits) / min(limits)
        found.append(f"busy machine, the same product took {slower:.1f}x longer")
    awake = max(turn.asleep for turns in rounds for turn in turns.values())
    if awake > RESTLESS:
        found.append(f"a sleeping contestant used {awake:.2f} s of CPU")
    return found


def share_of_limit(rounds: Sequence[Round], name: str, flops: int) -> float:
    """Speed in FLOP/s against that of a large matrix product in the same round."""
    limit = 2 * SGEMM_SIDE**3
    return statistics.median(
        flops / turns[name].seconds / (limit / turns[MACHINE].seconds) for turns in rounds
    )


# Ratios of times within a round: medians, and bootstrap intervals.


def paired_ratios(rounds: Iterable[Round], ours: str, theirs: str) -> list[float]:
    """Speed-up of `ours` over `theirs`, round by round."""
    return [turns[theirs].seconds / turns[ours].seconds for turns in rounds]


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A ratio with its interval."""

    ratio: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        """`faster` or `slower` if the interval excludes 1."""
        if self.low > 1:
            return "faster"
        return "slower" if self.high < 1 else "no difference shown"


def compare(
    ratios: Sequence[Sequence[float]], *, level: float = 0.95, resamples: int = 4000, seed: int = 0
) -> Estimate:
    """Geometric mean over settings of each one's median ratio; the interval resamples rounds.

    Too few rounds give an interval without ends: all n of them enclose the true median with
    probability 1 - 2 ** (1 - n) only, and resampling cannot improve on that.
    """
    if any(1 - 2.0 ** (1 - len(setting)) < level for setting in ratios):
        return Estimate(ratio=_centre(ratios), low=0.0, high=math.inf)
    draw = np.random.default_rng(seed)
    logs = [
        np.log(np.median(draw.choice(setting, (resamples, len(setting))), axis=1))
        for setting in ratios
    ]
    low, high = np.exp(np.quantile(np.mean(logs, axis=0), [(1 - level) / 2, (1 + level) / 2]))
    return Estimate(ratio=_centre(ratios), low=float(low), high=float(high))


def _centre(ratios: Sequence[Sequence[float]]) -> float:
    return geometric_mean(statistics.median(setting) for setting in ratios)


def geometric_mean(values: Iterable[float]) -> float:
    """The exponential of the mean logarithm."""
    return math.exp(statistics.fmean(math.log(value) for value in values))


def quantile(ordered: Sequence[float], share: float) -> float:
    """The value below which `share` of the sorted values lie, between neighbours linearly."""
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])
