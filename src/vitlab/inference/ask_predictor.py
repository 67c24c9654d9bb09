"""Whether a model can be asked what is on pictures, and the predictor that asks; no torch."""

import io
import os
from collections.abc import Callable, Iterable, Sequence
from typing import cast

import numpy as np
from PIL import Image

from vitlab.errors import InputError, WeightsError
from vitlab.inference.engine import Engine
from vitlab.inference.pictures import Picture, reading
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
    images: Picture | Iterable[Picture],
    *,
    top: int,
    batch_size: int | None,
    threshold: float | None,
) -> list[Prediction]:
    """What the predictor that is made for them says of pictures, or of a single one."""
    if top < 1:
        raise InputError(f"top {top} must be at least 1")
    single = isinstance(images, str | os.PathLike | Image.Image | np.ndarray | io.BytesIO)
    pictures: Iterable[Picture] = [images] if single else images  # type: ignore[list-item, assignment]
    with reading():
        size = 1 if single and batch_size is None else batch_size
        batches = predictor(batch_size=size, threshold=threshold).stream(pictures, top=top)
        return [prediction for batch in batches for prediction in batch]


def _check_threshold(source: WeightSource, threshold: float) -> None:
    if source.task != "multi-label":
        raise InputError(
            f"threshold {threshold} is for multi-label models; {source.path.name} is a "
            f"{source.task} one"
        )
    if not 0 <= threshold <= 1:
        raise InputError(f"threshold {threshold}; valid: from 0 to 1")
