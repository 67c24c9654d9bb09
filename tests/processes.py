"""Functions of test modules in several processes that know each other, as torchrun starts them."""

import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def free_port() -> int:
    """A port that nothing listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def environments(size: int) -> list[dict[str, str]]:
    """Environment of each process of one command."""
    port = str(free_port())
    return [
        {
            **os.environ,
            "PYTHONPATH": f"{ROOT / 'src'}:{ROOT / 'tests'}",
            "OMP_NUM_THREADS": "1",
            "VITLAB_ONNX": "0",
            "VITLAB_BFLOAT16": "0",
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(size),
            "LOCAL_WORLD_SIZE": str(size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
        }
        for rank in range(size)
    ]


def start(
    size: int, words: list[str], environment: Mapping[str, str] | None = None
) -> list[subprocess.Popen[str]]:
    """Start `python WORDS` as each of the processes; size 1: without a launcher."""
    alone = {k: v for k, v in environments(1)[0].items() if k not in ("RANK", "WORLD_SIZE")}
    return [
        subprocess.Popen(
            [sys.executable, *words],
            env={**found, **(environment or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for found in (environments(size) if size > 1 else [alone])
    ]


def outputs(processes: list[subprocess.Popen[str]], code: int = 0) -> list[str]:
    """What each process printed; all must end with this exit code."""
    found = [process.communicate(timeout=1200) for process in processes]
    errors = "\n".join(f"[rank {i}] {error}" for i, (_, error) in enumerate(found))
    assert [process.returncode for process in processes] == [code] * len(processes), errors
    return [output for output, _ in found]


def together(size: int, function: str, *arguments: object) -> list[str]:
    """What each process printed that calls `module:function` with these arguments as text."""
    module, name = function.split(":")
    call = f"import sys; from {module} import {name} as f; f(*sys.argv[1:])"
    return outputs(start(size, ["-c", call, *map(str, arguments)]))
