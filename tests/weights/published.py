"""A small checkpoint as publishers have them: on a server, with a line in the table."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from data.server import Served
from vitlab import VisionTransformer, create_model, save_weights
from vitlab.weights import resolve as table
from vitlab.weights.resolve import Checkpoint

FILE = "demo.npz"


GELU = {"google": "tanh"}
"""What a format demands; the others take the model's own, `erf`."""


def small_model(format: str = "google", **changes: Any) -> VisionTransformer:
    """`vit_test` as a format has it, with a head of a thousand classes that says something."""
    torch.manual_seed(0)
    gelu = GELU.get(format, "erf")
    model = create_model("vit_test", **{"classes": 1000, "gelu": gelu, **changes})
    assert isinstance(model, VisionTransformer)
    if model.head is not None:
        torch.nn.init.normal_(model.head.weight)
    return model


def publish(
    served: Served, folder: Path, monkeypatch: pytest.MonkeyPatch, **changes: str | None
) -> Checkpoint:
    """Google's format of the small model on the server, and nothing else in the table."""
    path = folder / "original.npz"
    save_weights(small_model(), path, format="google")
    served.files[FILE] = path.read_bytes()
    entry = Checkpoint(
        name="vit_test.demo",
        url=served.address + FILE,
        size=None,
        sha256=None,
        licence="Apache-2.0",
        dataset="imagenet-1k",
        preparation="google",
    )
    return list_only(replace(entry, **changes), monkeypatch)


def list_only(entry: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> Checkpoint:
    """Let the table have this line alone."""
    monkeypatch.setattr(table, "checkpoints", lambda: {entry.name: entry})
    return entry
