"""Two processes of one thread against one process of one thread: images/s and the exchange.

    python benchmarks/scale.py
    python benchmarks/scale.py --batch-size 64 --rounds 8 --json scale.json

Both train `vit_ti16` with the same global batch, in turn, with a loader in memory. The ratio is the
images/s of two processes divided by those of one. The exchange is the time to sum a gradient of the
model over both processes while nothing else runs; while training, a part of it hides behind the
backward pass. `shards` is the mode that gives the same bits for any number of processes.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

MODEL, SIZE = "vit_ti16", 224
STEPS, WARM_UP = 4, 1


def free_port() -> str:
    """A port that nothing listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return str(found.getsockname()[1])


def measured(processes: int, batch_size: int, shards: int) -> dict[str, float]:
    """What the first of so many processes measures."""
    port = free_port()
    several = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(processes)}
    alone = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")}
    started = [
        subprocess.Popen(
            [sys.executable, __file__, "--work", f"{batch_size},{shards}"],
            env={**alone, "OMP_NUM_THREADS": "1"}
            | ({**several, "RANK": str(rank)} if processes > 1 else {}),
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(processes)
    ]
    printed = [process.communicate()[0] for process in started]
    assert all(process.returncode == 0 for process in started)
    found: dict[str, float] = json.loads(printed[0])
    return found


def work(batch_size: int, shards: int) -> None:
    """One process: print the time of a step and of an exchange, in seconds."""
    import torch

    from vitlab.data.augment.config import AugmentConfig
    from vitlab.data.images import ArraySet
    from vitlab.data.loader import ArrayLoader
    from vitlab.machine.world import close_world, open_world
    from vitlab.models.variants import create_model
    from vitlab.training.batch_pieces import rows_of
    from vitlab.training.config import TrainConfig
    from vitlab.training.state import new_state
    from vitlab.training.step import train_step

    world = open_world()
    config = TrainConfig(model=MODEL, batch_size=batch_size, shards=shards)
    model = create_model(MODEL).train()
    state = new_state(model, config, world)
    pixels = torch.randint(256, (batch_size, 3, SIZE, SIZE), dtype=torch.uint8)
    loader = ArrayLoader(
        ArraySet(images=pixels, labels=torch.arange(batch_size)),
        batch_size=batch_size,
        seed=0,
        augment=AugmentConfig(flip="random"),
        mean=(0.5,) * 3,
        std=(0.5,) * 3,
        classes=1000,
        rows=rows_of(config, world),
    )
    times = []
    for step in range(WARM_UP + STEPS):
        world.wait()
        begin = time.monotonic()
        train_step(state, loader.batch(step), config, lr_factor=0.01)
        world.wait()
        times.append(time.monotonic() - begin)
    gradient = torch.zeros(sum(parameter.numel() for parameter in model.parameters()))
    exchanges = []
    for _ in range(5):
        world.wait()
        begin = time.monotonic()
        world.sum(gradient)
        exchanges.append(time.monotonic() - begin)
    first = world.rank == 0
    close_world()
    if first:
        step, exchange = statistics.median(times[WARM_UP:]), statistics.median(exchanges)
        print(json.dumps({"step": step, "exchange": exchange}))


def main() -> None:
    """Measure in turn, and print medians over the rounds."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--work", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(*map(int, options.work.split(",")))
        return
    arms = {"1 process": (1, 0), "2 processes": (2, 0), "2 processes, shards=2": (2, 2)}
    rounds: list[dict[str, Any]] = []
    for _ in range(options.rounds):
        rounds.append(
            {name: measured(n, options.batch_size, shards) for name, (n, shards) in arms.items()}
        )
        print(json.dumps(rounds[-1]), flush=True)
    base = statistics.median(each["1 process"]["step"] for each in rounds)
    print(f"{MODEL}, {options.batch_size} images of {SIZE} x {SIZE} a step, float32")
    for name in arms:
        step = statistics.median(each[name]["step"] for each in rounds)
        exchange = statistics.median(each[name]["exchange"] for each in rounds)
        speed = options.batch_size / step
        print(
            f"{name:24s} {step:.3f} s a step, {speed:5.1f} images/s, {base / step:.2f} times, "
            f"exchange {1e3 * exchange:.1f} ms"
        )
    if options.json:
        options.json.write_text(json.dumps(rounds, indent=2))


if __name__ == "__main__":
    main()
