"""How good models are with each number of merged tokens, on the same images."""

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from vitlab.data.datasets import open_data
from vitlab.errors import InputError
from vitlab.evaluate.bootstrap import interval
from vitlab.evaluate.classify import Evaluation
from vitlab.tasks.benchmark.content import Accuracy
from vitlab.tasks.benchmark.plan import Plan, Watch
from vitlab.tasks.benchmark.prepare import Prepared
from vitlab.tasks.evaluate import Evaluated, check_split, evaluate


def judged(
    plan: Plan, models: Sequence[Prepared], data: str, split: str, watch: Watch | None
) -> Iterator[Accuracy]:
    """Accuracies, and how they change from the first of the same weights, image by image."""
    known: dict[str, NDArray[np.float64]] = {}
    for model in (model for model in models if not model.twin):
        for count in (model.merge_tokens,) if model.exported else plan.merge_tokens:
            what = f"accuracy of {model.name}" + (f", R={count}" if count else "")
            told = None if watch is None else partial(watch, what)
            found = evaluate(model.judged, data, split=split, merge_tokens=count, watch=told)
            assert isinstance(found.evaluation, Evaluation)  # `check_data` has seen to it
            right = _right(found)
            change, bounds = changed(right - known.setdefault(model.network or model.name, right))
            yield Accuracy(
                model=model.name,
                merge_tokens=count,
                images=found.evaluation.images,
                accuracy=found.evaluation.accuracy,
                interval=found.evaluation.interval,
                change=change,
                change_interval=bounds,
            )


def check_data(data: str, split: str) -> None:
    """Refuse what could not be judged, before anything is timed."""
    check_split(split)
    source = open_data(data)
    if source.task != "single-label":
        raise InputError(f"{data} is {source.task} data; valid: single-label")


def _right(found: Evaluated) -> NDArray[np.float64]:
    """One for each image that is answered rightly, in the order of the data."""
    outcome = found.outcome
    right: NDArray[np.float64] = (outcome.logits.argmax(dim=1) == outcome.labels).double().numpy()
    return right


def changed(changes: NDArray[np.float64]) -> tuple[float, tuple[float, float]]:
    """The mean over the images and its 95 % interval."""
    return float(changes.mean()), interval(lambda rows: float(changes[rows].mean()), len(changes))
