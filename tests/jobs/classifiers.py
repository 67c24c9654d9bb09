"""A tiny classifier in a file, and images for it."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from vitlab import Preprocessing, VisionTransformer, create_model, save_weights
from vitlab.weights.source import WeightSource

LABELS = ("blue", "green", "red")


def saved_model(path: Path, *, seed: int = 0, task: str = "single-label", **changes: Any) -> Path:
    """Weights that are random and have opinions."""
    torch.manual_seed(seed)
    model = create_model("vit_test", classes=len(LABELS), **changes)
    assert isinstance(model, VisionTransformer)
    assert model.head is not None
    torch.nn.init.normal_(model.head.weight)
    model.source = WeightSource(
        format="vitlab",
        path=Path("vit_test"),
        preprocessing=Preprocessing(size=(32, 32), mean=(0.5,) * 3, std=(0.5,) * 3),
        labels=LABELS,
        task=task,
    )
    save_weights(model, path)
    return path


def colours(folder: Path, count: int) -> Path:
    """Images of one colour each, with noise that tells them apart."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(0)
    for number in range(count):
        pixels = random.integers(0, 120, (37, 41, 3), dtype=np.uint8)
        pixels[..., number % 3] += 120
        Image.fromarray(pixels).save(folder / f"{number:02}.png")
    return folder
