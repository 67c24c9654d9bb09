"""From the start of a process to printed labels: `vitlab predict` against ten lines of timm.

    python benchmarks/cold_start.py
    python benchmarks/cold_start.py --rounds 15 --json cold.json

Both classify the same photo with a small model and one process each time; the files are in the
system's cache. timm builds a model of about the same size with random weights, so it does not even
read any. A ratio is their time divided by ours: above 1 we are faster.
Needs the extras `dev` and `export`.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from harness import ROOT
from PIL import Image

from vitlab.timing.referee import compare

THEIRS = """
import sys
import timm
import torch
from PIL import Image
model = timm.create_model("vit_tiny_patch16_224", num_classes=10, pretrained=False).eval()
config = timm.data.resolve_model_data_config(model)
transform = timm.data.create_transform(**config, is_training=False)
with torch.inference_mode():
    scores = model(transform(Image.open(sys.argv[1]).convert("RGB"))[None]).softmax(-1)[0]
for value, label in zip(*scores.topk(5)):
    print(int(label), f"{value:.1%}")
"""
STUBS = """
import torch
library = torch.library.Library("torchvision", "DEF")
for operator in ("nms", "qnms"):
    library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
"""
"""Put before it where torchvision's compiled operators do not fit this torch: else timm stops."""
OURS = "from vitlab.cli.main import main; main()"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        photo = Path(folder) / "photo.jpg"
        pixels = np.random.default_rng(0).integers(0, 256, (375, 500, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(photo)
        commands = {
            "vitlab": [sys.executable, "-c", OURS, "predict", "cifar10", str(photo)],
            "timm": [sys.executable, "-c", importable(THEIRS), str(photo)],
        }
        for command in commands.values():  # files come into the system's cache
            seconds_of(command)
        times: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(given.rounds):
            for name, command in commands.items():
                times[name].append(seconds_of(command))
    found = compare([[b / a for a, b in zip(times["vitlab"], times["timm"], strict=True)]])
    for name, seconds in times.items():
        print(f"{name:8} {sorted(seconds)[len(seconds) // 2]:.2f} s (median of {len(seconds)})")
    print(f"ratio    {found.ratio:.2f} ({found.low:.2f} to {found.high:.2f}): {found.verdict}")
    if given.json is not None:
        facts = {"seconds": times, "ratio": found.ratio, "interval": [found.low, found.high]}
        given.json.write_text(json.dumps(facts, indent=2) + "\n")


def importable(script: str) -> str:
    """The script, with stubs in front of it where timm cannot be imported without."""
    tried = subprocess.run([sys.executable, "-c", "import timm"], capture_output=True, check=False)
    return script if tried.returncode == 0 else STUBS + script


def seconds_of(command: list[str]) -> float:
    """How long a process takes that prints labels."""
    start = time.perf_counter()
    done = subprocess.run(
        command,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    seconds = time.perf_counter() - start
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) >= 5, done.stdout
    return seconds


if __name__ == "__main__":
    main()
