"""Process of one contestant: `python -m vitlab.timing.process FACTORY ARGUMENTS`."""

import json
import os
import sys
import time
from collections.abc import Callable
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

from vitlab.errors import VitlabError


def time_calls(factory: str, arguments: dict[str, Any]) -> None:
    """Run a contestant: build it, then answer each line of stdin with a line until it closes."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def answer(value: Any) -> None:
        answers.write(json.dumps(value) + "\n")
        answers.flush()

    module, _, function = factory.partition(":")
    try:
        call = getattr(import_module(module), function)(**arguments)
    except VitlabError as mistake:
        answer(str(mistake))
        return

    def turn(calls: int, warm_up: int) -> dict[str, Any]:
        asleep = time.process_time() - fell_asleep
        for _ in range(warm_up):
            call()
        times = [time.perf_counter()]
        for _ in range(calls):
            call()
            times.append(time.perf_counter())
        return {
            "seconds": (times[-1] - times[0]) / calls,
            "asleep": asleep,
            "each": [after - before for before, after in pairwise(times)],
        }

    def memory() -> dict[str, int]:
        running = _peak_memory()
        return {"ever": max(ever, running), "running": running}

    ever = _peak_memory()
    _forget_peak_memory()
    commands: dict[str, Callable[..., Any]] = {
        "turn": turn,
        "memory": memory,
        "result": lambda: _plain(call()),
    }
    answer(None)
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
    """Reset the peak memory counter of Linux (proc(5), clear_refs)."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


if __name__ == "__main__":
    time_calls(sys.argv[1], json.loads(sys.argv[2]))
