"""A dataset that has to be fetched first, and a model of its classes."""

from pathlib import Path

import pytest
import torch

from experiments.tiny import LABELS, source
from vitlab import Preprocessing, create_model
from vitlab.data.datasets import Dataset, Mirror, StoredFile
from vitlab.io.download import Progress
from vitlab.registry import DATASETS
from vitlab.weights.bundle import save_bundle

IMAGES = 35
"""Test images of the dataset."""


def fetchable(monkeypatch: pytest.MonkeyPatch, folder: Path) -> tuple[Path, str]:
    """Model, and name of a dataset that a mirror would bring."""

    def deliver(work: Path, ready: Path, progress: Progress) -> None:
        (ready / "toy.bin").write_bytes(b"toy")

    dataset = Dataset(
        name="toy",
        title="a toy",
        licence="none",
        classes=len(LABELS),
        images=(65, IMAGES),
        open=lambda folder: source(),
        files=(StoredFile(name="toy.bin", size=3, checksum=None),),
        mirrors=(Mirror(name="here", deliver=deliver),),
    )
    (folder / "data").mkdir(parents=True)
    monkeypatch.setenv("VITLAB_DATA", str(folder / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    monkeypatch.setattr(DATASETS, "_entries", {**DATASETS._entries, "toy": dataset})
    torch.manual_seed(0)
    model = create_model("vit_test", image_size=16, classes=len(LABELS))
    torch.nn.init.normal_(model.get_parameter("head.weight"))
    half = Preprocessing(size=(16, 16), mean=(0.5,) * 3, std=(0.5,) * 3)
    save_bundle(folder / "model", model, preprocessing=half, labels=LABELS)
    return folder / "model", "toy"
