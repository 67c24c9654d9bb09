"""Two checkouts of vitlab in one run: a restructuring must not make anything slower.

    git worktree add ../before COMMIT
    python benchmarks/checkouts.py ../before --rounds 10 --json checkouts.json

Measures the cold start of `vitlab predict cifar10 a.jpg`, predictions over 400 images, training
steps and eager forward passes. Every round starts one process per checkout, in random order; all
use this interpreter and its torch. A ratio is the old time divided by the new one: above 1 the new
checkout, which is this one, is faster. Only public names are used: both checkouts have them.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from harness import ROOT, Progress
from PIL import Image

from vitlab.timing.referee import compare

COMMAND = "from vitlab.cli.main import main; main()"
PREDICT = """
import sys, time, vitlab
from pathlib import Path
paths = sorted(Path(sys.argv[1]).glob("*.jpg"))
classifier = vitlab.load("cifar10")
classifier.predict(paths[:8])
start = time.perf_counter()
assert len(list(classifier.predict(paths))) == len(paths)
print(time.perf_counter() - start)
"""
FORWARD = """
import sys, time, torch, vitlab
torch.manual_seed(0)
model = vitlab.create_model("vit_ti16", classes=10).eval()
images = torch.randn(8, 3, 224, 224)
with torch.inference_mode():
    for _ in range(3):
        model(images)
    start = time.perf_counter()
    for _ in range(int(sys.argv[1])):
        model(images)
print(time.perf_counter() - start)
"""
IMAGE_SIZE = (375, 500, 3)


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("old", type=Path, help="folder of the other checkout")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--images", type=int, default=400, help="images to predict")
    parser.add_argument("--steps", type=int, default=40, help="training steps")
    parser.add_argument("--forwards", type=int, default=20, help="forward passes of 8 images")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    if not (given.old / "src" / "vitlab").is_dir():
        parser.error(f"{given.old} is not a checkout: no src/vitlab")
    checkouts = {"old": given.old.resolve(), "new": ROOT}
    with tempfile.TemporaryDirectory() as folder:
        images = write_images(Path(folder) / "images", given.images)
        times = measure(checkouts, images, given)
    facts = {name: summary(name, found) for name, found in times.items()}
    if given.json is not None:
        given.json.write_text(json.dumps(facts, indent=2) + "\n")


def measure(
    checkouts: dict[str, Path], images: Path, given: argparse.Namespace
) -> dict[str, dict[str, list[float]]]:
    """Seconds by measurement and checkout, one value per round."""
    measurements = {
        "cold start": lambda source: seconds_of(
            source, [COMMAND, "predict", "cifar10", str(sorted(images.iterdir())[0])]
        ),
        "predict": lambda source: printed_seconds(source, [PREDICT, str(images)]),
        "training step": lambda source: training_seconds(source, given.steps),
        "forward": lambda source: printed_seconds(source, [FORWARD, str(given.forwards)]),
    }
    order, progress = random.Random(0), Progress(len(measurements))
    times: dict[str, dict[str, list[float]]] = {}
    for name, seconds in measurements.items():
        progress.start(name)
        found: dict[str, list[float]] = {checkout: [] for checkout in checkouts}
        for source in checkouts.values():  # files come into the system's cache
            seconds(source)
        for done in range(given.rounds):
            progress.round(done, given.rounds)
            for checkout in order.sample(sorted(checkouts), len(checkouts)):
                found[checkout].append(seconds(checkouts[checkout]))
        times[name] = found
    return times


def summary(name: str, times: dict[str, list[float]]) -> dict[str, Any]:
    """Print and return medians and the ratio of one measurement."""
    ratio = compare([[old / new for old, new in zip(times["old"], times["new"], strict=True)]])
    old, new = (statistics.median(times[checkout]) for checkout in ("old", "new"))
    interval = f"{ratio.low:.3f} to {ratio.high:.3f}"
    print(f"{name:14} {old:7.3f} s {new:7.3f} s  {ratio.ratio:.3f} ({interval}): {ratio.verdict}")
    return {"seconds": times, "ratio": ratio.ratio, "interval": [ratio.low, ratio.high]}


def write_images(folder: Path, count: int) -> Path:
    """A folder of JPEG files of noise."""
    folder.mkdir()
    draw = np.random.default_rng(0)
    for number in range(count):
        pixels = draw.integers(0, 256, IMAGE_SIZE, dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number:04}.jpg")
    return folder


def run(source: Path, words: list[str]) -> str:
    """Standard output of Python code in a checkout."""
    done = subprocess.run(
        [sys.executable, "-c", *words],
        env=os.environ | {"PYTHONPATH": str(source / "src"), "VITLAB_ONNX": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def seconds_of(source: Path, words: list[str]) -> float:
    """Seconds from the start of a process to its end."""
    start = time.perf_counter()
    run(source, words)
    return time.perf_counter() - start


def printed_seconds(source: Path, words: list[str]) -> float:
    """Seconds that the code measured by itself, without imports."""
    return float(run(source, words))


def training_seconds(source: Path, steps: int) -> float:
    """Seconds between the first and the last logged step, per step."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        words = ["train", "--data", "sample", "--out", str(out), "--steps", str(steps), "--json"]
        run(source, [COMMAND, *words])
        lines = (out / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    logged = [row for row in rows if row["split"] == "train" and row["name"] == "loss"]
    first, last = logged[0], logged[-1]
    return float((last["time"] - first["time"]) / (last["step"] - first["step"]))


if __name__ == "__main__":
    main(sys.argv[1:])
