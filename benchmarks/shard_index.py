"""The index of very many samples in shards: its size, the memory of its processes, time to resume.

    python benchmarks/shard_index.py
    python benchmarks/shard_index.py --samples 300000 --json index.json

The index is synthetic, with the arrays of a real one: shards of 8,000 samples of 1,000 classes. It
is held out, ordered and planned as a training that resumes at a position in its epoch 10; then
processes read all of its arrays, which they share.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from vitlab.config import to_dict
from vitlab.data.shards.index import ARRAYS, HEADER, Index, IndexHeader
from vitlab.data.shards.store import Store
from vitlab.io.files import write_json

SHARD, CLASSES, EPOCH, BATCH, WINDOW = 8_000, 1_000, 10, 1_024, 16
IMAGE = 110_000
"""Bytes of an image, about, as in ImageNet."""


def write_index(folder: Path, samples: int) -> None:
    """Arrays as `vitlab data index` writes them for tar shards; there are no shards."""
    draw = np.random.default_rng(0)
    shards = -(-samples // SHARD)
    sizes = draw.integers(IMAGE // 2, 2 * IMAGE, samples, np.int32)
    labels = draw.integers(CLASSES, size=samples, dtype=np.int32)
    names = np.char.add(np.char.zfill(labels.astype("S4"), 4), b"/")
    names = np.char.add(names, np.char.zfill(np.arange(samples).astype("S8"), 8))
    names = np.char.add(names, b".jpg")
    ends = np.minimum(np.arange(1, shards + 1) * SHARD, samples)
    arrays = {
        "offset": np.concatenate([[0], sizes.astype(np.int64).cumsum()[:-1] + 512]),
        "size": sizes,
        "digest": draw.integers(1 << 63, size=samples, dtype=np.uint64),
        "name_end": np.arange(1, samples + 1) * names.dtype.itemsize,
        "names": names.view(np.uint8),
        "block_end": ends,
        "block_file": np.arange(shards),
        "block_rows": np.zeros((shards, 2)),
        "block_size": np.full(shards, SHARD * IMAGE),
    }
    for name, values in arrays.items():
        np.save(folder / f"{name}.npy", values.astype(ARRAYS[name]))
    np.save(folder / "label.npy", labels)
    header = IndexHeader(
        files=tuple(f"{number:05}.tar" for number in range(shards)),
        samples=samples,
        splits={"train": (0, samples)},
        task="single-label",
        labels=tuple(f"class {number}" for number in range(CLASSES)),
        digest="0" * 32,
    )
    write_json(folder / HEADER, to_dict(header))


def memory(pid: int | str = "self") -> dict[str, int]:
    """Bytes that a process has for itself, and its part of those that several share."""
    found = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, value = line.split()[:2]
        found[name.rstrip(":")] = int(value) * 1024
    own = found["Anonymous"]
    return {"own": own, "share": found["Pss"] - own}


def resume(folder: Path) -> dict[str, float]:
    """Seconds until the batch at a position in epoch 10 is planned, and those of the processor."""
    import torch

    from vitlab.data.augment.config import AugmentConfig
    from vitlab.data.order import Order
    from vitlab.data.plan import plan_batch
    from vitlab.data.sources.shards import images_of
    from vitlab.data.split import hold_out

    torch.set_num_threads(1)
    began, worked = time.monotonic(), time.process_time()
    index = Index(folder, Store(str(folder.parent)))
    images = images_of(index, "train")
    opened = time.monotonic()
    train, _ = hold_out(images, share=0.01, seed=0)
    held_out = time.monotonic()
    order = Order(len(train), batch_size=BATCH, repeats=1, seed=0, shards=train.shards(WINDOW))
    step = EPOCH * len(images) // BATCH
    plan = plan_batch(order, AugmentConfig(mixup=0.8, flip="random"), 0, step)
    planned = time.monotonic()
    assert len(plan.index.unique()) == BATCH
    assert int(plan.epoch[0]) >= EPOCH
    return {
        "open": opened - began,
        "hold out": held_out - opened,
        "order and plan": planned - held_out,
        "processor": time.process_time() - worked,
    }


def touch(folder: Path) -> None:
    """A process that reads every page of the index, as a worker may in the course of an epoch."""
    before = memory()
    index = Index(folder, Store(str(folder.parent)))
    total = sum(int(getattr(index, name).sum(dtype=np.uint64)) for name in ARRAYS)
    total += int(index.label.sum())
    print("ready", flush=True)
    sys.stdin.readline()
    after = memory()
    found = {name: after[name] - before[name] for name in after}
    print(json.dumps(found | {"sum": total}), flush=True)
    sys.stdin.readline()  # the others still share the index


def measure(folder: Path, workers: int) -> dict[str, Any]:
    """Everything, with some processes that share the index."""
    size = sum(path.stat().st_size for path in folder.iterdir())
    call = [sys.executable, __file__, "--touch", str(folder)]
    pipe = subprocess.PIPE
    processes = [subprocess.Popen(call, stdin=pipe, stdout=pipe, text=True) for _ in range(workers)]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    found = []
    for process in processes:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("\n")
        process.stdin.flush()
        found.append(json.loads(process.stdout.readline()))
    for process in processes:
        process.communicate()
    assert len({each["sum"] for each in found}) == 1
    call = [sys.executable, __file__, "--resume", str(folder)]
    runs = [
        json.loads(subprocess.run(call, check=True, capture_output=True, text=True).stdout)
        for _ in range(3)
    ]
    return {
        "bytes": size,
        "own bytes of a worker": max(each["own"] for each in found),
        "shared bytes of a worker": max(each["share"] for each in found),
        "seconds": min(runs, key=lambda run: run["processor"]),
    }


def main() -> None:
    """Write an index, measure, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--samples", type=int, default=10_000_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--json", type=Path, help="write everything measured here")
    parser.add_argument("--touch", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--resume", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.touch:
        touch(options.touch)
        return
    if options.resume:
        print(json.dumps(resume(options.resume)))
        return
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root, "vitlab.index")
        folder.mkdir()
        write_index(folder, options.samples)
        found = measure(folder, options.workers)
    seconds = found["seconds"]
    processor = seconds.pop("processor")
    position = EPOCH * options.samples
    print(f"{options.samples:,} samples: an index of {found['bytes'] / 1e6:,.0f} MB")
    print(
        f"{options.workers} workers that read all of it: {found['own bytes of a worker'] / 1e6:.0f}"
        f" MB each alone, {found['shared bytes of a worker'] / 1e6:,.0f} MB as a part of shared"
    )
    print(
        f"resumed at sample {position:,}: {sum(seconds.values()):.2f} s ("
        + ", ".join(f"{name} {value:.2f}" for name, value in seconds.items())
        + f"), {processor:.2f} s of one core"
    )
    if options.json is not None:
        options.json.write_text(json.dumps({**found, "processor": processor}, indent=1))


if __name__ == "__main__":
    main()
