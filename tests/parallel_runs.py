"""Trainings in several processes, and comparisons of what they wrote."""

import json
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from processes import outputs, start
from tiny_runs import metrics_of

OPTIONS = {
    "model": "vit_test",
    "precision": "float32",
    "evaluations": 2,
    "ema": 0.9,
    "optimizer.name": "muon",
    "augment.mixup": 0.4,
    "augment.flip": "random",
    "model.dropout": 0.1,
    "model.drop_path": 0.2,
    "batch_size": 45,  # odd pieces
}


ALONE = """
import sys
from vitlab.cli.main import run
code = run(sys.argv[1:])
import torch.distributed
parts = {"machine.processes", "training.parallel", "training.sharded"}
assert not torch.distributed.is_initialized()
assert not {f"vitlab.{part}" for part in parts} & sys.modules.keys()
sys.exit(code)
"""
"""`vitlab` in a single process: nothing that several need is imported."""


def trained(folder: Path, size: int, steps: int = 4, data: str = "digits", **changes: Any) -> Path:
    """A run of `vitlab train` in this many processes; only the first prints."""
    settings = [f"--set={name}={value}" for name, value in (OPTIONS | changes).items()]
    call = ["-c", ALONE] if size == 1 else ["-m", "vitlab"]
    words = [*call, "train", "--data", data, "--steps", str(steps), "--json"]
    printed = outputs(start(size, [*words, "--out", str(folder), *settings]))
    assert json.loads(printed[0])["report"] == str(folder / "report.html")
    assert printed[1:] == [""] * (size - 1)
    return folder


def assert_near(one: Path, other: Path, tolerance: float) -> None:
    """The same lines, with nearly the same losses."""
    pairs = list(zip(metrics_of(one), metrics_of(other), strict=True))
    assert any(line["split"] == "validation" for line, _ in pairs)
    for a, b in pairs:
        assert (a["step"], a["split"], a["name"]) == (b["step"], b["split"], b["name"])
        if a["name"] == "loss":
            assert abs(a["value"] - b["value"]) < tolerance, (a, b)


def assert_same_state(one: Path, other: Path, step: int) -> None:
    """Weights, averages and the optimizer's state, bit for bit."""
    name = f"checkpoints/step-{step:08d}.safetensors"
    left, right = load_file(one / name), load_file(other / name)
    assert left.keys() == right.keys()
    assert [key for key in left if not left[key].equal(right[key])] == []
