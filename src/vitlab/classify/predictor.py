"""Pictures in, labels with probabilities out, in order: threads read while others compute."""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Protocol, TypeVar, cast, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from vitlab.errors import InputError, WeightsError
from vitlab.images.pixels import (
    Decoded,
    Given,
    Picture,
    Pixels,
    as_pictures,
    is_single,
    path_of,
    read_picture,
    reading,
)
from vitlab.images.preprocessing import Preprocessing
from vitlab.task import THRESHOLD, Task
from vitlab.weights.source import WeightSource

# What computes: an engine takes 8-bit pictures of the model's size and gives probabilities.
#
# Imports no torch: an engine may do without.


@runtime_checkable
class Engine(Protocol):
    """A model that is ready to compute, in whatever runtime."""

    batch_size: int
    """Images at once that suit the model and the machine."""
    workers: int
    """Threads that may call `predict` at once, each with a batch of its own."""

    def start_worker(self) -> None:
        """Called once in each such thread, before its first `predict`."""

    def predict(self, pixels: NDArray[np.uint8] | NDArray[np.float32]) -> NDArray[np.float32]:
        """Probabilities [B, classes] of pixels [B, C, H, W]: 8 bits, or normalised already."""

    def close(self) -> None:
        """Called when no worker will compute any more."""


T = TypeVar("T")
AHEAD = 3
"""Batches under way for each that is being computed: one to compute, others to read."""


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
    task: Task = field(default="single-label", compare=False)

    @property
    def several(self) -> bool:
        """All of `top` is the answer, not the first of it: labels beside each other, or values."""
        return self.task != "single-label"

    @property
    def answers(self) -> tuple[str, ...]:
        """Each of `top` in words: a label with its probability, or what is told with its value."""
        written = "{} {:.4g}" if self.label is None else "{} {:.1%}"
        return tuple(written.format(*told) for told in self.top)


@dataclass(frozen=True, kw_only=True)
class Predictor:
    """An engine with what lies around it: how pictures are prepared, what classes are called."""

    engine: Engine
    preprocessing: Preprocessing
    labels: Sequence[str]
    task: Task = "single-label"
    threshold: float = THRESHOLD
    """Probability from which on a multi-label model's label is told."""

    def stream(
        self, pictures: Iterable[Picture | Decoded], *, top: int, continued: bool = False
    ) -> Generator[list[Prediction], None, None]:
        """Batch after batch of predictions, in the order of the pictures.

        A lone batch is computed with all cores at once, unless it is the rest of a `continued`
        job: the last bits of a result depend on how it was computed.
        """
        batches = _batches(pictures, self.engine.batch_size)
        begun = list(islice(batches, 2))
        with ExitStack() as stack:
            stack.callback(self.engine.close)
            readers = stack.enter_context(ThreadPoolExecutor(max(2, self.engine.workers)))
            if len(begun) == 1 and not continued:
                yield self._predictions(begun[0], self._submit(readers, begun[0]), top)
            else:
                yield from self._side_by_side(chain(begun, batches), readers, top)

    def _side_by_side(
        self, batches: Iterable[Sequence[Picture | Decoded]], readers: ThreadPoolExecutor, top: int
    ) -> Iterator[list[Prediction]]:
        engine = self.engine
        waiting: deque[Future[list[Prediction]]] = deque()
        computing = ThreadPoolExecutor(engine.workers, initializer=engine.start_worker)
        with ExitStack() as stack:
            stack.callback(computing.shutdown, cancel_futures=True)
            stack.callback(readers.shutdown, cancel_futures=True)
            for batch in batches:
                prepared = self._submit(readers, batch)
                waiting.append(computing.submit(self._predictions, batch, prepared, top))
                if len(waiting) >= AHEAD * engine.workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()

    def _submit(
        self, readers: ThreadPoolExecutor, batch: Sequence[Picture | Decoded]
    ) -> "list[Future[Pixels | InputError]]":
        return [readers.submit(self._read, picture) for picture in batch]

    def _read(self, picture: Picture | Decoded) -> Pixels | InputError:
        try:
            return read_picture(picture, self.preprocessing)
        except InputError as error:
            return error

    def _predictions(
        self,
        batch: Sequence[Picture | Decoded],
        prepared: "Sequence[Future[Pixels | InputError]]",
        top: int,
    ) -> list[Prediction]:
        found = [future.result() for future in prepared]
        pixels = [result for result in found if not isinstance(result, InputError)]
        answers = iter(self.engine.predict(np.stack(pixels)) if pixels else ())
        return [
            self._failure(picture, result)
            if isinstance(result, InputError)
            else self._prediction(picture, next(answers), top)
            for picture, result in zip(batch, found, strict=True)
        ]

    def _prediction(
        self, picture: Picture | Decoded, answer: NDArray[np.float32], top: int
    ) -> Prediction:
        path = path_of(picture)
        said = told(answer, self.labels, task=self.task, threshold=self.threshold, top=top)
        label, number = said[0] if said else (None, None)
        if self.task == "regression":
            return Prediction(
                path=path, label=None, probability=None, top=said, value=number, task=self.task
            )
        return Prediction(path=path, label=label, probability=number, top=said, task=self.task)

    def _failure(self, picture: Picture | Decoded, error: InputError) -> Prediction:
        path, reason = path_of(picture), str(error)
        return Prediction(
            path=path, label=None, probability=None, top=(), error=reason, task=self.task
        )


def told(
    answer: NDArray[np.float32], labels: Sequence[str], *, task: Task, threshold: float, top: int
) -> tuple[tuple[str, float], ...]:
    """Labels with what the model says of them: the `top` likeliest, all likely, or all."""
    order: Sequence[int] = range(len(answer))
    if task != "regression":
        order = np.argsort(-answer, kind="stable").tolist()
    if task == "multi-label":
        order = [number for number in order if answer[number] >= threshold]
    elif task == "single-label":
        order = order[:top]
    return tuple((labels[number], shortest(answer[number])) for number in order)


def shortest(value: float | np.float32) -> float:
    """The number with the fewest digits that is this one in 32 bits."""
    return float(str(np.float32(value)))


def _batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    iterator = iter(items)
    while batch := list(islice(iterator, size)):
        yield batch


# Whether a model can be asked what is on pictures, and the predictor that asks; no torch.


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
