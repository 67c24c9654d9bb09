"""ImageNet's folders are called by WordNet ids, its classes by names: evaluation knows both."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vitlab
from vitlab.weights import imagenet
from weights.published import small_model

IDS = ("n01440764", "n02124075", "n02979186")


@pytest.mark.parametrize("by_name", [False, True])
def test_folders_by_id_or_name(tmp_path: Path, by_name: bool) -> None:
    names = dict(zip(imagenet.wordnet_ids(), imagenet.labels(), strict=True))
    weights = tmp_path / "model.safetensors"
    model = small_model()
    vitlab.save_weights(model, weights)
    preparation = vitlab.Preprocessing(size=(32, 32), mean=(0.5,) * 3, std=(0.5,) * 3)
    known = vitlab.load_weights(weights, labels="imagenet-1k", preprocessing=preparation)
    vitlab.save_weights(known, weights)
    random = np.random.default_rng(0)
    for split in ("train", "val"):
        for wordnet in IDS:
            folder = tmp_path / "data" / split / (names[wordnet] if by_name else wordnet)
            folder.mkdir(parents=True)
            for number in range(2):
                pixels = random.integers(0, 256, (33, 35, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"{number}.png")
    found = vitlab.evaluate(weights, tmp_path / "data")
    assert set(found.outcome.labels.tolist()) == {
        imagenet.wordnet_ids().index(wordnet) for wordnet in IDS
    }
