"""Features in Python: of any kind and layer, in a file, and the images nearest to one.

    python docs/examples/features.py

Writes into the current folder. The model here is a tiny one without training, so that it runs
anywhere; put a run, a bundle or a weight file of yours in its place.
"""

from pathlib import Path

import numpy as np
import torch
from PIL import Image

import vitlab
from vitlab.jobs.features import extract
from vitlab.jobs.similar import similar
from vitlab.weights.bundle import save_bundle

torch.manual_seed(0)
save_bundle(
    Path("bundle"),
    vitlab.create_model("vit_test", classes=2),
    preprocessing=vitlab.Preprocessing(size=(32, 32), mean=(0.5,) * 3, std=(0.5,) * 3),
    labels=("dark", "light"),
    metrics={},
    provenance={},
)
random = np.random.default_rng(0)
for label, least in (("dark", 0), ("light", 150)):
    Path("photos", label).mkdir(parents=True, exist_ok=True)
    for number in range(4):
        pixels = random.integers(least, least + 100, (40, 60, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(Path("photos", label, f"{number}.png"))

classifier = vitlab.load("bundle")
photo = Path("photos", "light", "2.png")
print("pooled ", classifier.features(photo).shape)
print("patches", classifier.features(photo, kind="patches", layer=0).shape)

written = extract("bundle", ["photos"], output=Path("photos.npz"))
print("written", written.images, "images of", written.info.shape)
with np.load("photos.npz", allow_pickle=False) as file:
    assert file["features"].shape == (8, 32)
    assert set(file["labels"]) == {"dark", "light"}

found = similar(Path("photos.npz"), photo, top=3)
assert found.matches[0].path == str(photo)
for match in found.matches:
    print(f"{match.similarity:.4f}  {match.path}")
