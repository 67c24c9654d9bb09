"""`vitlab demo`: the model inside the package predicts images, and is fine-tuned for a minute."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8

from vitlab.classify.classifier import Classifier, load
from vitlab.classify.predictor import Prediction
from vitlab.data.datasets import open_data
from vitlab.data.images import ArraySet
from vitlab.errors import ConfigError
from vitlab.jobs.evaluate import evaluate
from vitlab.jobs.finetune import finetune
from vitlab.jobs.run_result import RunResult
from vitlab.jobs.training_run import Watcher
from vitlab.objectives.objective import Metrics

MODEL, DATA = "cifar10", "sample"
BUDGET = {"budget": 1.0, "budget_in": "minutes"}
TRIES = 1000


@dataclass(frozen=True, kw_only=True)
class Shown:
    """An image of the test split and its prediction."""

    image: UInt8[np.ndarray, "H W 3"]
    truth: str
    prediction: Prediction


@dataclass(frozen=True, kw_only=True)
class DemoResult:
    """Accuracy of the model inside the package, without training."""

    model: str
    shown: tuple[Shown, ...]
    evaluation: Metrics
    """Metrics on the sample's test images, which are of CIFAR-10's test split."""


def first_look() -> DemoResult:
    """One test image of each class, and the accuracy on all of them, before any training."""
    classifier = load(MODEL)
    found = evaluate(MODEL, DATA)
    return DemoResult(
        model=classifier.source.path.name, shown=show(classifier), evaluation=found.evaluation
    )


def tune(
    out: Path,
    *,
    changes: Mapping[str, Any] | None = None,
    watcher: Watcher | None = None,
) -> RunResult:
    """Fine-tune the model on the sample's training images, most of which it learned from before."""
    return finetune(MODEL, data=DATA, out=out, changes=changes or BUDGET, watcher=watcher)


def free_folder(parent: Path) -> Path:
    """`demo`, or the first numbered one that is not there yet."""
    names = ("demo", *(f"demo-{number}" for number in range(2, TRIES)))
    for name in names:
        if not (parent / name).exists():
            return parent / name
    raise ConfigError(f"{parent} holds {TRIES - 1} demos; delete some, or choose with --out")


def show(classifier: Classifier) -> tuple[Shown, ...]:
    """The first test image of each class with its prediction."""
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
