"""From images to labels with probabilities, in order: threads read while others compute.

Imports no torch: an engine may not need it.
"""

from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from vitlab.errors import InputError
from vitlab.images.pixels import Decoded, ImageSource, Pixels, path_of, read_image
from vitlab.images.preprocessing import Preprocessing
from vitlab.objectives.objective import objective_of
from vitlab.task import THRESHOLD, Task


@runtime_checkable
class Engine(Protocol):
    """A model that is ready to compute, in any runtime."""

    batch_size: int
    """Batch size that suits the model and the machine."""
    workers: int
    """Threads that may call `predict` at once, each with a batch of its own."""

    def start_worker(self) -> None:
        """Called once in each such thread, before its first `predict`."""

    def predict(self, pixels: NDArray[np.uint8] | NDArray[np.float32]) -> NDArray[np.float32]:
        """Probabilities [B, classes] of pixels [B, C, H, W]: 8 bits, or normalised already."""

    def close(self) -> None:
        """Called after the last `predict`."""


T = TypeVar("T")
AHEAD = 3
"""Batches under way for each that is being computed: one to compute, others to read."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Prediction:
    """Labels of one image with probabilities, or the `error` if it could not be read."""

    path: str | None
    label: str | None
    probability: float | None
    top: tuple[tuple[str, float], ...]
    """Most likely labels with their probabilities; for a regression, all names with values."""
    error: str | None = None
    value: float | None = None
    """First value of a regression."""
    task: Task = field(default="single-label", compare=False)

    @property
    def several(self) -> bool:
        """True if all of `top` is the prediction, not only its first: labels, or values."""
        return objective_of(self.task).prediction != "best"

    @property
    def answers(self) -> tuple[str, ...]:
        """Each of `top` as text: a label with its probability, or a name with its value."""
        written = "{} {:.4g}" if self.label is None else "{} {:.1%}"
        return tuple(written.format(*pair) for pair in self.top)


@dataclass(frozen=True, kw_only=True)
class Predictor:
    """An engine with the preparation of its images and the names of its classes."""

    engine: Engine
    preprocessing: Preprocessing
    labels: Sequence[str]
    task: Task = "single-label"
    threshold: float = THRESHOLD
    """Minimum probability of a multi-label model's predicted label."""

    def stream(
        self, pictures: Iterable[ImageSource | Decoded], *, top: int, continued: bool = False
    ) -> Generator[list[Prediction], None, None]:
        """Predictions in batches, in the order of the images.

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
        self,
        batches: Iterable[Sequence[ImageSource | Decoded]],
        readers: ThreadPoolExecutor,
        top: int,
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
        self, readers: ThreadPoolExecutor, batch: Sequence[ImageSource | Decoded]
    ) -> "list[Future[Pixels | InputError]]":
        return [readers.submit(self._read, picture) for picture in batch]

    def _read(self, picture: ImageSource | Decoded) -> Pixels | InputError:
        try:
            return read_image(picture, self.preprocessing)
        except InputError as error:
            return error

    def _predictions(
        self,
        batch: Sequence[ImageSource | Decoded],
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
        self, picture: ImageSource | Decoded, answer: NDArray[np.float32], top: int
    ) -> Prediction:
        return self.prediction(answer, top=top, path=path_of(picture))

    def prediction(
        self, answer: NDArray[np.float32], *, top: int, path: str | None = None
    ) -> Prediction:
        """Prediction from one row of the engine's result."""
        best = ranked(answer, self.labels, task=self.task, threshold=self.threshold, top=top)
        label, number = best[0] if best else (None, None)
        if objective_of(self.task).has_values:
            return Prediction(
                path=path, label=None, probability=None, top=best, value=number, task=self.task
            )
        return Prediction(path=path, label=label, probability=number, top=best, task=self.task)

    def _failure(self, picture: ImageSource | Decoded, error: InputError) -> Prediction:
        path, reason = path_of(picture), str(error)
        return Prediction(
            path=path, label=None, probability=None, top=(), error=reason, task=self.task
        )


def ranked(
    answer: NDArray[np.float32], labels: Sequence[str], *, task: Task, threshold: float, top: int
) -> tuple[tuple[str, float], ...]:
    """Labels with probabilities, the `top` or those above `threshold`; or all with values."""
    prediction = objective_of(task).prediction
    order: Sequence[int] = range(len(answer))
    if prediction != "values":
        order = np.argsort(-answer, kind="stable").tolist()
    if prediction == "likely":
        order = [number for number in order if answer[number] >= threshold]
    elif prediction == "best":
        order = order[:top]
    return tuple((labels[number], shortest(answer[number])) for number in order)


def shortest(value: float | np.float32) -> float:
    """Number with the fewest digits that equals the value in 32 bits."""
    return float(str(np.float32(value)))


def _batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    iterator = iter(items)
    while batch := list(islice(iterator, size)):
        yield batch
