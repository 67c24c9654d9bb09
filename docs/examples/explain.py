"""Explanations in Python: arrays for those who count, a figure for those who look.

    python docs/examples/explain.py

Writes into the current folder. The model here is a tiny one without training, so that it runs
anywhere; put a run, a bundle or a weight file of yours in its place.
"""

from pathlib import Path

import numpy as np
import torch

import vitlab
from vitlab.weights.bundle import save_bundle

torch.manual_seed(0)
model = vitlab.create_model("vit_test", classes=2, image_size=(32, 48))
torch.nn.init.normal_(model.head.weight)
save_bundle(
    Path("bundle"),
    model,
    preprocessing=vitlab.Preprocessing(size=(32, 48), mean=(0.5,) * 3, std=(0.5,) * 3, crop=0.9),
    labels=("dark", "light"),
    metrics={},
    provenance={},
)
photo = np.random.default_rng(0).integers(0, 256, (120, 200, 3), dtype=np.uint8)

classifier = vitlab.load("bundle")
found = classifier.explain(photo, method="relevance", target="light")
print(found.caption)
print("patches", found.map.shape, "pixels", found.pixel_map.shape, "said", found.top[0])
assert found.map.shape == (4, 6)
assert found.pixel_map.shape == (120, 200)

heads = classifier.explain(photo, method="attention", each="head")
print("blocks", len(heads.layers), "heads and patches of each", heads.layers[0].shape)

patch = classifier.explain(photo, method="attention", token=(1, 4), layer=0, head=1)
print(patch.question)

many = classifier.explain_many([photo, photo[::-1].copy()], method="rollout", each="layer")
assert [one.layers[1].shape for one in many] == [(4, 6), (4, 6)]

found.save("map.png")  # or found.figure(), for a notebook
