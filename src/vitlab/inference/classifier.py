"""A model that classifies images: its weights, its preprocessing and its labels together."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from vitlab.errors import InputError, VitlabError
from vitlab.preprocessing import Preprocessing, Source
from vitlab.weights.bundle import is_bundle, load_bundle
from vitlab.weights.load import load_weights
from vitlab.weights.source import WeightSource

T = TypeVar("T")
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "single-label": lambda logits: logits.softmax(dim=-1),
    "multi-label": lambda logits: logits.sigmoid(),
    "regression": lambda values: values,
}
"""What makes an answer of a model's output, by task."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Prediction:
    """What the model says of one image; `error` instead, where the image could not be read."""

    path: str | None
    label: str | None
    probability: float | None
    top: tuple[tuple[str, float], ...]
    """The likeliest labels with their probabilities; of values, all with their names."""
    error: str | None = None
    value: float | None = None
    """The first of the values that a regression tells."""


class Classifier:
    """A model with all that it needs to answer for an image file."""

    def __init__(self, model: nn.Module, source: WeightSource) -> None:
        self.model: Any = model.eval()
        self.source = source
        classes: int = cast(Any, model).config.classes
        self.labels = source.labels or tuple(str(number) for number in range(classes))
        if len(self.labels) != classes:
            raise VitlabError(f"{len(self.labels)} labels for {classes} classes")

    @property
    def preprocessing(self) -> Preprocessing:
        """How images are prepared; an error where nothing says it."""
        return self.source.require_preprocessing()

    def predict(
        self,
        images: Source | Iterable[Source],
        *,
        top: int = 5,
        batch_size: int = 8,
        threshold: float = 0.5,
    ) -> list[Prediction]:
        """Labels with probabilities, in the order of the images; a broken one does not stop it.

        Of a multi-label model every label from a probability of `threshold` on, whatever `top`.
        """
        self.source.require_head()
        if top < 1 or batch_size < 1:
            raise InputError(f"top {top} and batch_size {batch_size} must be at least 1")
        single = isinstance(images, str | os.PathLike | Image.Image | np.ndarray)
        sources: Iterable[Source] = [images] if single else images  # type: ignore[list-item, assignment]
        return [
            prediction
            for batch in _batches(sources, batch_size)
            for prediction in self._predict_batch(batch, top, threshold)
        ]

    def probabilities(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B classes"]:
        """What the model believes of preprocessed images; the values that a regression tells."""
        with torch.inference_mode():
            return ACTIVATIONS[self.source.task](self.model(images))

    def _predict_batch(
        self, batch: Sequence[Source], top: int, threshold: float
    ) -> Iterator[Prediction]:
        prepared = [self._prepare(source) for source in batch]
        pixels = [result for result in prepared if not isinstance(result, InputError)]
        answers = iter(self.probabilities(torch.from_numpy(np.stack(pixels)))) if pixels else None
        for source, result in zip(batch, prepared, strict=True):
            path = os.fspath(source) if isinstance(source, str | os.PathLike) else None
            if isinstance(result, InputError) or answers is None:
                yield Prediction(path=path, label=None, probability=None, top=(), error=str(result))
            else:
                yield self._prediction(path, next(answers), top, threshold)

    def _prepare(self, source: Source) -> NDArray[np.float32] | InputError:
        try:
            return self.preprocessing.apply(source)
        except InputError as error:
            return error

    def _prediction(
        self, path: str | None, answer: Tensor, top: int, threshold: float
    ) -> Prediction:
        if self.source.task == "regression":
            told = tuple(zip(self.labels, answer.tolist(), strict=True))
            return Prediction(path=path, label=None, probability=None, top=told, value=told[0][1])
        several = self.source.task == "multi-label"
        values, indices = answer.topk(len(answer) if several else min(top, len(answer)))
        best = tuple(
            (self.labels[index], value)
            for index, value in zip(indices.tolist(), values.tolist(), strict=True)
            if not several or value >= threshold
        )
        label, probability = best[0] if best else (None, None)
        return Prediction(path=path, label=label, probability=probability, top=best)


def load(path: str | os.PathLike[str], **changes: Any) -> Classifier:
    """A classifier from a run, a bundle, a weight file, or a folder that holds one."""
    folder = Path(path) / "bundle" if (Path(path) / "bundle").is_dir() else Path(path)
    if is_bundle(folder) and not changes:
        return Classifier(*load_bundle(folder))
    model = load_weights(folder, **changes)
    return Classifier(model, model.source)


def _batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    iterator = iter(items)
    while batch := list(islice(iterator, size)):
        yield batch
