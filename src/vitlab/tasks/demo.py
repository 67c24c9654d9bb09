"""`vitlab demo`: train on the embedded sample, and ask the result about images it never saw."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8

from vitlab.data.datasets import open_data
from vitlab.data.images import ArraySet
from vitlab.errors import ConfigError
from vitlab.inference.classifier import Classifier, load
from vitlab.inference.predictor import Prediction
from vitlab.tasks.job import Watcher
from vitlab.tasks.job_result import Run
from vitlab.tasks.train import train

DATA = "sample"
RECIPE = "demo"
TRIES = 1000


@dataclass(frozen=True, kw_only=True)
class Shown:
    """An image of the test split and what the model says of it."""

    image: UInt8[np.ndarray, "H W 3"]
    truth: str
    prediction: Prediction


@dataclass(frozen=True, kw_only=True)
class Demo:
    """A run, and some images that it was asked about."""

    run: Run
    shown: tuple[Shown, ...]


def demo(
    out: Path,
    *,
    changes: Mapping[str, Any] | None = None,
    watcher: Watcher | None = None,
) -> Demo:
    """Train, evaluate, and predict one test image of each class."""
    run = train(RECIPE, data=DATA, out=out, changes=changes, watcher=watcher)
    return Demo(run=run, shown=show(load(run.bundle)))


def free_folder(parent: Path) -> Path:
    """`demo`, or the first numbered one that is not there yet."""
    names = ("demo", *(f"demo-{number}" for number in range(2, TRIES)))
    for name in names:
        if not (parent / name).exists():
            return parent / name
    raise ConfigError(f"{parent} holds {TRIES - 1} demos; delete some, or choose with --out")


def show(classifier: Classifier) -> tuple[Shown, ...]:
    """The first test image of each class and the model's opinion."""
    source = open_data(DATA)
    assert source.open_test is not None
    test = source.open_test()
    assert isinstance(test, ArraySet)
    first = [int((test.labels == label).nonzero()[0]) for label in range(len(source.labels))]
    pictures = [test.images[index].permute(1, 2, 0).numpy() for index in first]
    return tuple(
        Shown(image=picture, truth=truth, prediction=prediction)
        for picture, truth, prediction in zip(
            pictures, source.labels, classifier.predict(pictures, top=3), strict=True
        )
    )
