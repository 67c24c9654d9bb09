"""Whether a model can be asked what is on pictures, and the predictor that asks; no torch."""

from collections.abc import Callable, Iterable, Sequence
from typing import cast

from vitlab.errors import InputError, WeightsError
from vitlab.inference.engine import Engine
from vitlab.inference.pictures import Given, as_pictures, is_single, reading
from vitlab.inference.predictor import Prediction, Predictor
from vitlab.kinds import THRESHOLD, Task
from vitlab.weights.source import WeightSource


def build_predictor(
    source: WeightSource,
    labels: Sequence[str],
    engine: Callable[[], Engine],
    *,
    batch_size: int | None,
    threshold: float | None,
) -> Predictor:
    """What streams pictures through an engine, which is made when all else is right."""
    source.require_head()
    if not labels:
        raise WeightsError(f"{source.path.name} has no head; valid: a classifier")
    if batch_size is not None and batch_size < 1:
        raise InputError(f"batch_size {batch_size} must be at least 1")
    if threshold is not None:
        _check_threshold(source, threshold)
    preprocessing = source.require_preprocessing()
    return Predictor(
        engine=engine(),
        preprocessing=preprocessing,
        labels=labels,
        task=cast(Task, source.task),
        threshold=THRESHOLD if threshold is None else threshold,
    )


def predict_pictures(
    predictor: Callable[..., Predictor],
    images: Given | Iterable[Given],
    *,
    top: int,
    batch_size: int | None,
    threshold: float | None,
) -> list[Prediction]:
    """Predictions for images or a single one; TypeError for what is no image."""
    if top < 1:
        raise InputError(f"top {top} must be at least 1")
    size = 1 if is_single(images) and batch_size is None else batch_size
    with reading():
        asked = predictor(batch_size=size, threshold=threshold)
        batches = asked.stream(as_pictures(images, asked.preprocessing), top=top)
        return [prediction for batch in batches for prediction in batch]


def _check_threshold(source: WeightSource, threshold: float) -> None:
    if source.task != "multi-label":
        raise InputError(
            f"threshold {threshold} is for multi-label models; {source.path.name} is a "
            f"{source.task} one"
        )
    if not 0 <= threshold <= 1:
        raise InputError(f"threshold {threshold}; valid: from 0 to 1")
