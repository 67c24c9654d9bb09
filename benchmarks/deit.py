"""DeiT-Ti and photos with their classes, for benchmarks that need a model that has learned.

Real weights and photos are looked for in ../shared.
"""

import numpy as np
from harness import ROOT
from numpy.typing import NDArray

from vitlab import imagenet, load

SHARED = ROOT.parent / "shared"
WEIGHTS = SHARED / "weights" / "deit_tiny_patch16_224.safetensors"
PHOTOS = SHARED / "data" / "imagenette-mini"
BATCH = 8
"""Photos that are computed at once."""


def photos(count: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """So many photos as the model reads them, always the same, and their classes."""
    files = sorted(PHOTOS.rglob("*.JPEG"))
    chosen = [files[number] for number in np.random.default_rng(0).permutation(len(files))[:count]]
    preprocessing, ids = load(WEIGHTS).preprocessing, imagenet.wordnet_ids()
    images = np.stack([preprocessing.apply(file) for file in chosen])
    return images, np.array([ids.index(file.parent.name) for file in chosen])
