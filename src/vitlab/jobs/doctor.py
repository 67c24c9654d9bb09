"""`vitlab doctor`: facts of this machine, and differences between the processes of a command."""

import os
import platform
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import PIL
import torch

from vitlab import __version__
from vitlab.data.datasets import Data, absolute, open_data
from vitlab.jobs.plan import current_commit
from vitlab.jobs.processes import code_digest, digest_of
from vitlab.machine.device import best_device, cores, fast_precision, free_bytes
from vitlab.machine.world import World, open_world

EQUAL = ("vitlab", "code", "Python", "torch", "NumPy", "Pillow", "precision", "threads", "data")
"""Facts that must be the same in all processes."""
NUMBERS = 1 << 22
"""Numbers that are summed over the processes: 16 MB, the gradient of a ViT-Ti."""
ROUNDS = 5


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """Facts of each process, and their problems."""

    facts: tuple[Mapping[str, str], ...]
    """Facts of each process, by rank."""
    problems: tuple[str, ...]
    exchange_seconds: float | None
    """Time to sum a gradient over the processes; None: there is one process."""

    def to_dict(self) -> dict[str, Any]:
        """All values, as JSON-serialisable types."""
        return {
            "processes": [dict(facts) for facts in self.facts],
            "problems": list(self.problems),
            "exchange_seconds": self.exchange_seconds,
            "exchange_bytes": 4 * NUMBERS,
        }


def doctor(data: Data | None = None, *, download: bool = False) -> Diagnosis:
    """Facts of the environment, and under a launcher those in which processes differ."""
    world = open_world()
    facts = world.collect(dict(_facts(world, data, download)))
    seconds, problems = None, list(_differences(facts))
    if world.size > 1:
        seconds, wrong = _exchange(world)
        problems += wrong
    return Diagnosis(facts=tuple(facts), problems=tuple(problems), exchange_seconds=seconds)


def _facts(world: World, data: Data | None, download: bool) -> Iterator[tuple[str, str]]:
    device = best_device()
    yield "process", f"{world.rank} of {world.size}"
    yield "machine", socket.gethostname()
    yield "vitlab", f"{__version__}, commit {current_commit() or 'unknown'}"
    yield "code", code_digest()
    yield "Python", platform.python_version()
    yield "torch", torch.__version__
    yield "NumPy", np.__version__
    yield "Pillow", PIL.__version__
    yield "system", f"{platform.system()} {platform.release()}, {platform.machine()}"
    yield "device", _device_name(device)
    yield "precision", fast_precision(device)
    yield "cores", str(cores())
    yield "threads", str(torch.get_num_threads())
    free = free_bytes()
    yield "free memory", "unknown" if free is None else f"{free / 1e9:.1f} GB"
    yield "backends", ", ".join(_backends()) or "none"
    if data is not None:
        images = open_data(data, download=download).open_train()
        yield "data", f"{len(images):,} training images, digest {digest_of(images)}"
        if isinstance(data, str | os.PathLike):
            yield "data from", absolute(data)


def _device_name(device: torch.device) -> str:
    if device.type == "cpu":
        return "cpu"
    count = torch.accelerator.device_count()
    name = torch.cuda.get_device_name() if device.type == "cuda" else device.type
    return f"{device.type}:{torch.accelerator.current_device_index()} of {count}, {name}"


def _backends() -> Iterator[str]:
    """Libraries by which processes of this torch can communicate."""
    import torch.distributed as dist

    if not dist.is_available():
        return
    for name in ("gloo", "nccl", "xccl", "mpi"):
        if getattr(dist, f"is_{name}_available", lambda: False)():
            yield name


def _differences(facts: list[dict[str, str]]) -> Iterator[str]:
    first = facts[0]
    for rank, other in enumerate(facts):
        for name in EQUAL:
            if other.get(name) != first.get(name):
                yield (
                    f"{name}: {other.get(name)} in process {rank} on {other['machine']}, "
                    f"{first.get(name)} in process 0 on {first['machine']}"
                )


def _exchange(world: World) -> tuple[float, list[str]]:
    """Seconds of a sum over the processes, and an error if it is wrong."""
    own = torch.full((NUMBERS,), float(world.rank + 1), device=best_device())
    found = world.sum(own)
    times = []
    for _ in range(ROUNDS):
        world.wait()
        begin = time.monotonic()
        found = world.sum(own)
        float(found[0])  # waits for the device
        times.append(time.monotonic() - begin)
    wanted = world.size * (world.size + 1) / 2
    wrong = world.collect(not bool((found == wanted).all()))
    problems = [f"process {rank} received a wrong sum" for rank, bad in enumerate(wrong) if bad]
    return min(times), problems
