"""Fair timing of rivals: each lives in a process of its own and all are woken in turn.

A round wakes every contestant once, in random order, so that whatever disturbs the machine disturbs
all of them; only ratios within a round are compared.
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
"""Where this package is imported from, also by contestants."""
START = (
    "import sys; sys.path[:] = filter(None, sys.path); "
    "import runpy; runpy.run_module('vitlab.timing.process', run_name='__main__')"
)
"""Python's own way to run a module would import whatever lies in the working directory."""


class ContestantFailed(RuntimeError):
    """A contestant's process raised or died."""


@dataclass(frozen=True, kw_only=True)
class Contestant:
    """What runs in one process: `module:function`, called once, returns the call to be timed."""

    name: str
    factory: str
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One waking of a contestant."""

    seconds: float
    """Of one call: the mean over the turn."""
    asleep: float
    """CPU seconds that the process used between its last turn and this one: should be none."""
    each: tuple[float, ...] = ()
    """Seconds of each call."""


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Peak resident memory of a process, in bytes."""

    ever: int
    """With imports and the loading of weights."""
    running: int
    """Since it was ready."""


class Process:
    """A contestant's process as the referee sees it; it sleeps in a blocking read between turns."""

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
        """What one call returns, as nested lists and numbers."""
        return self._ask("result")

    def turn(self, *, calls: int, warm_up: int = 0) -> Turn:
        """Wake the contestant for some calls that do not count and `calls` that do."""
        told = self._ask("turn", calls=calls, warm_up=warm_up)
        return Turn(**{**told, "each": tuple(told["each"])})

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
            told = self._errors.read().decode(errors="replace").strip()
            raise ContestantFailed(f"{self.name} died:\n{told[-3000:]}")
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

    `check` sees what each contestant's call returns, and raises where they do not do the same work.
    `paths` are where contestants are imported from, beside what this process knows.
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


# The machine as a contestant: what it can do at most, and whether it had other work.

SGEMM_SIDE = 1536
MACHINE = "sgemm"
BUSY = 1.3
"""Slowest against fastest turn of the same matrix product on a machine that has other work."""
RESTLESS = 0.05
"""CPU seconds between two turns; waking up and answering takes a fifth of it."""


def machine() -> Contestant:
    """A large product of float32 matrices: the speed that nothing here can pass."""
    return Contestant(name=MACHINE, factory="vitlab.timing.referee:sgemm")


def sgemm() -> Callable[[], float]:
    """The product, to be timed."""
    import torch

    left, right = torch.randn(2, SGEMM_SIDE, SGEMM_SIDE)

    def multiply() -> float:
        return float((left @ right)[0, 0])

    return multiply


def disturbances(rounds: Sequence[Round]) -> list[str]:
    """What makes the figures doubtful: a machine with other work, contestants that do not sleep."""
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


# Ratios of times within a round, and how sure they are: medians, and intervals by resampling.


def paired_ratios(rounds: Iterable[Round], ours: str, theirs: str) -> list[float]:
    """How many times faster we were, round by round."""
    return [turns[theirs].seconds / turns[ours].seconds for turns in rounds]


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A ratio with its interval."""

    ratio: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        """Who won, where the interval leaves no doubt."""
        if self.low > 1:
            return "faster"
        return "slower" if self.high < 1 else "no difference shown"


def compare(
    ratios: Sequence[Sequence[float]], *, level: float = 0.95, resamples: int = 4000, seed: int = 0
) -> Estimate:
    """Geometric mean over settings of each one's median ratio; the interval resamples rounds.

    Too few rounds give an interval without ends: all n of them enclose the true median with
    probability 1 - 2 ** (1 - n) only, and no resampling can know more.
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
