"""Small training runs, and what is left of them, for tests of everything about runs."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from vitlab.jobs import train as job
from vitlab.jobs.train import train
from vitlab.training.loop import fit

SOURCE = Path(__file__).resolve().parents[1] / "src"
CHANGES: dict[str, Any] = {
    "model": "vit_test",
    "changes": {"dropout": 0.1, "drop_path": 0.1},
    "batch_size": 32,
    "budget": 24.0,
    "budget_in": "steps",
    "ema": 0.9,
    "evaluations": 3,
    "checkpoint_every": 5,
    "augment.mixup": 0.5,
    "augment.flip": "random",
    "optimizer.name": "muon",
}
MAIN = "from vitlab.cli.main import main; main()"


def metrics_of(run: Path) -> list[dict[str, Any]]:
    """The lines of a run but for the time."""
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k != "time"} for line in lines]


def weights_of(run: Path) -> bytes:
    """The numbers of the bundle, without the header, which names the folder."""
    content = (run / "bundle" / "model.safetensors").read_bytes()
    return content[8 + int.from_bytes(content[:8], "little") :]


def same(one: Path, other: Path) -> bool:
    """Whether two runs ended at the same weights by the same way."""
    return metrics_of(one) == metrics_of(other) and weights_of(one) == weights_of(other)


def words(out: Path, changes: dict[str, Any] | None, data: str) -> list[str]:
    """The arguments of a run, or of its resumption where there are no changes."""
    found = ["train", "--out", str(out)]
    found += ["--resume"] if changes is None else ["default", "--data", data]
    for key, value in (changes or {}).items():
        found += ["--set", f"{key}={value if isinstance(value, str) else json.dumps(value)}"]
    return found


def start(
    out: Path, changes: dict[str, Any] | None, data: str, *, before: str = ""
) -> "subprocess.Popen[str]":
    """The command line, in a process of its own; `before` is what its Python runs first."""
    return subprocess.Popen(
        [sys.executable, "-c", f"{before}\n{MAIN}", *words(out, changes, data)],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def make_folder(folder: Path, each: int = 40) -> str:
    """Two classes of small JPEGs, and a broken one in both."""
    pixels = np.random.default_rng(0)
    for label in ("left", "right"):
        (folder / label).mkdir(parents=True)
        for number in range(each):
            image = pixels.integers(0, 255, (40, 36, 3), dtype=np.uint8)
            Image.fromarray(image).save(folder / label / f"{number}.jpg")
        (folder / label / "broken.jpg").write_bytes(b"not an image")
    return str(folder)


def hanging_at(checkpoint: int) -> str:
    """Code for a process that hangs for ever in the middle of writing its n-th checkpoint."""
    return f"""
import os, time
sync, written = os.fsync, []
def hang(file):
    sync(file)
    written.extend([file] if "/.step-" in os.readlink(f"/proc/self/fd/{{file}}") else [])
    if len(written) == {checkpoint}:
        os.ftruncate(file, os.fstat(file).st_size // 2)
        time.sleep(600)
os.fsync = hang
"""


class PullsThePlug:
    """A loader that ends the run before one step."""

    def __init__(self, loader: Any, step: int) -> None:
        self.loader, self.step, self.broken = loader, step, loader.broken

    @property
    def steps_per_epoch(self) -> float:
        return float(self.loader.steps_per_epoch)

    def batch(self, step: int) -> Any:
        if step == self.step:
            raise KeyboardInterrupt
        return self.loader.batch(step)

    def close(self) -> None:
        self.loader.close()


def train_until(step: int, **arguments: Any) -> None:
    """`vitlab.train`, broken off without a warning before a step."""

    def plugged(config: Any, state: Any, loader: Any, **rest: Any) -> None:
        fit(config, state, PullsThePlug(loader, step), **rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(job, "fit", plugged)
        with pytest.raises(KeyboardInterrupt):
            train(**arguments)
