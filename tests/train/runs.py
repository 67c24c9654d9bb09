"""Small runs, and what is in their folders."""

import json
from pathlib import Path
from typing import Any

import torch

from vitlab.data.batch import Batch

SMALL: dict[str, Any] = {
    "model": "vit_test",
    "batch_size": 32,
    "budget": 4.0,
    "budget_in": "steps",
    "evaluations": 1,
    "checkpoint_every": 2,
}


def metrics_of(run: Path) -> list[dict[str, Any]]:
    """Every line of `metrics.jsonl`, without its time."""
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k != "time"} for line in lines]


def weights_of(run: Path) -> bytes:
    """The numbers of the bundle, without the header, which names the folder."""
    content = (run / "bundle" / "model.safetensors").read_bytes()
    return content[8 + int.from_bytes(content[:8], "little") :]


def random_batch(size: int, image_size: int = 32) -> Batch:
    """Noise of ten classes."""
    draw = torch.Generator().manual_seed(0)
    return Batch(
        torch.randn(size, 3, image_size, image_size, generator=draw),
        torch.randint(10, (size,), generator=draw),
        torch.arange(size),
    )
