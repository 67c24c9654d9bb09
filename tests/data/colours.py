"""A tiny model, and folders of images in a few colours that it can tell apart."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from vitlab import Preprocessing, VisionTransformer, create_model, save_weights
from vitlab.weights.source import WeightSource

COLOURS = ("blue", "green", "red")


def small_model(seed: int = 0, **changes: Any) -> VisionTransformer:
    """`vit_test` with random weights and a preprocessing."""
    torch.manual_seed(seed)
    model = create_model("vit_test", **{"classes": 3, **changes})
    assert isinstance(model, VisionTransformer)
    if model.head is not None:
        torch.nn.init.normal_(model.head.weight)
    model.source = WeightSource(
        format="vitlab",
        path=Path("vit_test"),
        preprocessing=Preprocessing(size=(32, 32), mean=(0.5,) * 3, std=(0.5,) * 3),
    )
    return model.eval()


def saved_model(path: Path, seed: int = 0, **changes: Any) -> Path:
    """The file of a small model."""
    save_weights(small_model(seed, **changes), path)
    return path


def write_colours(root: Path, counts: Mapping[str, int]) -> Path:
    """`SPLIT/COLOUR/N.png`, noisy, as many of each class as `counts` says of the split."""
    random = np.random.default_rng(0)
    for split, count in counts.items():
        for number, colour in enumerate(COLOURS):
            place = root / split / colour
            place.mkdir(parents=True)
            for i in range(count):
                pixels = random.integers(0, 120, (37, 41, 3), dtype=np.uint8)
                pixels[..., 2 - number] += 120
                Image.fromarray(pixels).save(place / f"{i}.png")
    return root
