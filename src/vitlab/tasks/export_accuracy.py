"""What an export costs in accuracy: the same images, before and after."""

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitlab.errors import InputError
from vitlab.evaluate.classify import Outcome
from vitlab.tasks.evaluate import evaluate

Z = 1.959964
"""Standard deviations on both sides of a mean that hold 95 %."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Accuracy:
    """Two models on the same images."""

    data: str
    images: int
    before: float
    after: float
    agreement: float
    """Part of the images that get the same class from both."""
    interval: tuple[float, float]
    """95 % confidence interval of after less before, image by image."""


def before(
    model: str | os.PathLike[str], data: str, *, split: str = "test", **changes: Any
) -> Outcome:
    """What the model answers in torch, to be compared with the file that is made of it.

    `changes` are those with which it is exported.
    """
    found = evaluate(model, data, split=split, engine="torch", **changes)
    if found.source.task != "single-label":
        raise InputError(f"--data compares single-label models; {data} is {found.source.task} data")
    return found.outcome


def accuracy_of(first: Outcome, exported: Path, data: str, *, split: str = "test") -> Accuracy:
    """A model by its answers against the file that was made of it."""
    return compared(first, evaluate(exported, data, split=split).outcome, data)


def compared(first: Outcome, second: Outcome, data: str) -> Accuracy:
    """Both answers to the same images, with the interval of paired proportions.

    That of Agresti and Min (2005), which half an image more of each kind keeps from being certain.
    """
    one, two = (outcome.logits.argmax(dim=1) for outcome in (first, second))
    right, still = one == first.labels, two == first.labels
    lost, won = int((right & ~still).sum()), int((~right & still).sum())
    images = len(first)
    more = images + 2
    difference = (won - lost) / more
    half = Z * math.sqrt(won + lost + 1 - (won - lost) ** 2 / more) / more
    return Accuracy(
        data=data,
        images=images,
        before=float(right.double().mean()),
        after=float(still.double().mean()),
        agreement=float((one == two).double().mean()),
        interval=(max(difference - half, -1.0), min(difference + half, 1.0)),
    )
