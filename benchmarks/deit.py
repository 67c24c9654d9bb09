"""DeiT-Ti and photos with their classes, for benchmarks that need a model that has learned.

They are looked for in the folder that VITLAB_BENCHMARK_DATA names, else in ../shared:
`weights/deit_tiny_patch16_224.safetensors`, and `data/imagenette-mini`, a part of Imagenette with a
folder of photos for each class (WordNet id) in `train` and in `val`.
"""

import os
from pathlib import Path

import numpy as np
from harness import ROOT
from numpy.typing import NDArray

from vitlab import load
from vitlab.weights.labels import wordnet_ids

PLACE = Path(os.environ.get("VITLAB_BENCHMARK_DATA") or ROOT.parent / "shared")
WEIGHTS = PLACE / "weights" / "deit_tiny_patch16_224.safetensors"
PHOTOS = PLACE / "data" / "imagenette-mini"
BATCH = 8
"""Photos that are computed at once."""


def photos(count: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """So many photos as the model reads them, always the same, and their classes."""
    files = sorted(PHOTOS.rglob("*.JPEG"))
    chosen = [files[number] for number in np.random.default_rng(0).permutation(len(files))[:count]]
    preprocessing, ids = load(WEIGHTS).preprocessing, wordnet_ids()
    images = np.stack([preprocessing.apply(file) for file in chosen])
    return images, np.array([ids.index(file.parent.name) for file in chosen])
