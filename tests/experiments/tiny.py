"""A data set and experiments that cost next to nothing."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from vitlab.data.datasets import DataSource
from vitlab.data.images import ArraySet
from vitlab.experiments.spec import Arm, Experiment
from vitlab.registry import DATASETS

LABELS = ("dark", "dim", "grey", "light", "white")
CHANGES: dict[str, Any] = {
    "model": "vit_test",
    "budget": 4.0,
    "budget_in": "steps",
    "batch_size": 5,
    "evaluations": 1,
    "augment.flip": "none",
    "augment.shift": 0,
}


def images(each: int, seed: int) -> ArraySet:
    """Noise around a brightness for each class."""
    random = torch.Generator().manual_seed(seed)
    labels = torch.arange(len(LABELS)).repeat_interleave(each)
    noise = torch.randint(0, 50, (len(labels), 3, 16, 16), generator=random)
    return ArraySet(
        images=(noise + 50 * labels[:, None, None, None]).to(torch.uint8), labels=labels
    )


def source() -> DataSource:
    return DataSource(
        name="tiny",
        labels=LABELS,
        channels=3,
        image_size=(16, 16),
        open_train=lambda: images(13, 0),
        open_test=lambda: images(7, 1),
        mean=(0.5,) * 3,
        std=(0.3,) * 3,
    )


@contextmanager
def registered() -> Iterator[str]:
    """The name of the data, while it is known."""
    DATASETS["tiny"] = source
    yield "tiny"
    del DATASETS._entries["tiny"]


def study(*arms: Arm, **fields: Any) -> Experiment:
    """An experiment of these arms, or of two."""
    arms = arms or (
        Arm(name="plain"),
        Arm(name="fast", changes={"optimizer.lr": 3e-3}, against=("plain",)),
    )
    return Experiment(
        **{"name": "study", "title": "Study", "arms": arms, "changes": CHANGES, **fields}
    )
