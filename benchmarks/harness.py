"""Fair timing of rivals: each lives in a process of its own and all are woken in turn.

A round wakes every contestant once, in random order, so that whatever disturbs the machine disturbs
all of them; only ratios within a round are compared. Run as a program, this file is a contestant.
"""

import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
SEARCHED = (ROOT / "src", ROOT / "tests", HERE)
"""Where contestants are imported from."""


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


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Peak resident memory of a process, in bytes."""

    ever: int
    """With imports and the loading of weights."""
    running: int
    """Since it was ready."""


class Process:
    """A contestant's process as the referee sees it; it sleeps in a blocking read between turns."""

    def __init__(self, contestant: Contestant, *, threads: int) -> None:
        self.name = contestant.name
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        self._popen = subprocess.Popen(
            [
                sys.executable,
                str(HERE / "harness.py"),
                contestant.factory,
                json.dumps(dict(contestant.arguments)),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=_environment(threads),
        )

    def __enter__(self) -> "Process":
        try:
            self._receive()
        except ContestantFailed:
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
        return Turn(**self._ask("turn", calls=calls, warm_up=warm_up))

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
) -> tuple[list[Round], dict[str, Memory]]:
    """Rounds of turns of about `seconds` each, and peak memories.

    `check` sees what each contestant's call returns, and raises where they do not do the same work.
    """
    order = random.Random(seed)
    with ExitStack() as stack:
        processes = [stack.enter_context(Process(c, threads=threads)) for c in contestants]
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
    draw = random.Random(seed)
    resampled = sorted(
        _centre([draw.choices(setting, k=len(setting)) for setting in ratios])
        for _ in range(resamples)
    )
    return Estimate(
        ratio=_centre(ratios),
        low=quantile(resampled, (1 - level) / 2),
        high=quantile(resampled, (1 + level) / 2),
    )


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


class Progress:
    """One line on a terminal: what is done, and how long the rest will take."""

    def __init__(self, settings: int) -> None:
        self.settings = settings
        self.begun = 0
        self.label = ""
        self._started = time.monotonic()

    def start(self, label: str) -> None:
        """Name the setting that begins."""
        self.label = label
        self.begun += 1
        self._show(f"{label}: starting")

    def round(self, done: int, rounds: int) -> None:
        """Count a round of the current setting."""
        if not done:
            self._started = time.monotonic()
            self._show(f"{self.label}: first round")
            return
        left = (time.monotonic() - self._started) / done * (rounds - done)
        self._show(f"{self.label}: round {done} of {rounds}, {left:.0f} s left of this setting")

    def _show(self, text: str) -> None:
        end = "" if sys.stderr.isatty() else "\n"
        start = "\r\033[K" if sys.stderr.isatty() else ""
        line = f"{start}[{self.begun} of {self.settings}] {text}"
        print(line, end=end, file=sys.stderr, flush=True)


def _environment(threads: int) -> dict[str, str]:
    paths = [str(path) for path in SEARCHED]
    return {
        **os.environ,
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "PYTHONPATH": os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")]),
    }


def _contest(factory: str, arguments: dict[str, Any]) -> None:
    """Be a contestant: build, then answer one line with one line until the referee hangs up."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    module, _, function = factory.partition(":")
    call = getattr(import_module(module), function)(**arguments)

    def answer(value: Any) -> None:
        print(json.dumps(value), file=answers, flush=True)

    def turn(calls: int, warm_up: int) -> dict[str, float]:
        asleep = time.process_time() - fell_asleep
        for _ in range(warm_up):
            call()
        start = time.perf_counter()
        for _ in range(calls):
            call()
        return {"seconds": (time.perf_counter() - start) / calls, "asleep": asleep}

    def memory() -> dict[str, int]:
        return {"ever": max(ever, _peak_memory()), "running": _peak_memory()}

    ever = _peak_memory()
    _forget_peak_memory()
    commands: dict[str, Callable[..., Any]] = {
        "turn": turn,
        "memory": memory,
        "result": lambda: _plain(call()),
    }
    answer("ready")
    fell_asleep = time.process_time()
    while line := sys.stdin.readline():
        command, values = json.loads(line)
        reply = commands[command](**values)
        fell_asleep = time.process_time()
        answer(reply)


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value


def _peak_memory() -> int:
    try:
        status = Path("/proc/self/status").read_text()
    except FileNotFoundError:
        return 0
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def _forget_peak_memory() -> None:
    """Let Linux count the peak anew from here (proc(5), clear_refs)."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


if __name__ == "__main__":
    _contest(sys.argv[1], json.loads(sys.argv[2]))
