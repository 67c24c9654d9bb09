"""The engine that runs an exported model: each core computes small batches of its own."""

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from vitlab.classify.engines.runtimes import Compute, Images, OpenedOnce
from vitlab.errors import InputError, WeightsError
from vitlab.images.preprocessing import Preprocessing
from vitlab.machine.device import (
    check_weights,
    cores,
    fitting,
    keep_freed_memory,
    share_cores,
    within_memory,
)
from vitlab.objectives.objective import objective_of
from vitlab.task import Task
from vitlab.weights.exported import Facts

Numbers = NDArray[np.float32]
UNEVEN = 1.25
"""Time of the slowest core against the mean, from which on all cores rather share one batch."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """An exported file in its runtime, with its metadata."""

    runtime: OpenedOnce
    name: str
    facts: Facts
    preprocessing: Preprocessing
    task: Task
    classes: int | None = None
    """Logits of each image; None: any number."""


class SessionEngine:
    """Cores that compute small batches side by side, or one image together."""

    def __init__(
        self, source: Source, *, batch_size: int | None = None, threads: int | None = None
    ) -> None:
        if not source.runtime.loaded:
            check_weights(source.name, source.facts.weight_bytes)
        keep_freed_memory()
        self._source = source
        self._threads = threads or cores()
        self._worker = threading.local()
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None
        self.workers, self._each = share_cores(self._threads)
        piece = source.facts.batch or within_memory(
            fitting(source.facts.output_bytes),
            peak_bytes=source.facts.peak_bytes,
            workers=self.workers,
        )
        self._piece = piece
        self.batch_size = batch_size or piece

    def start_worker(self) -> None:
        """This thread will compute whole batches, beside others."""
        _start(self._source.runtime, self._each, self._worker)

    def predict(self, pixels: Images) -> Numbers:
        """Probabilities [B, classes] of pixels [B, C, H, W]: 8 bits, or normalised already."""
        return objective_of(self._source.task).probabilities(self.logits(pixels))

    def logits(self, pixels: Images) -> Numbers:
        """Logits [B, classes]; a batch from outside the workers is split over all cores."""
        self._check(pixels)
        if getattr(self._worker, "started", False):
            pieces = self._cut(pixels, 1)
            return np.concatenate([self._compute(self._side_by_side, piece) for piece in pieces])
        if self._shares_one(len(pixels)):
            pieces = self._cut(pixels, 1)
            return np.concatenate([self._compute(self._together, piece) for piece in pieces])
        submitted = self._submit(self._side_by_side, self._cut(pixels, self.workers))
        return np.concatenate([piece.result() for piece in submitted])

    def close(self) -> None:
        """Release the threads; batches submitted by other callers are still computed."""
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown()

    @property
    def _side_by_side(self) -> Compute:
        return self._source.runtime.open(threads=self._each, callers=self.workers)

    @property
    def _together(self) -> Compute:
        return self._source.runtime.open(threads=self._threads, callers=1)

    def _submit(self, compute: Compute, pieces: list[Images]) -> list[Future[Numbers]]:
        """Submit pieces to the one pool of threads that all callers share.

        The lock keeps `close` out in between. The threads hold no reference to the engine, so that
        an unused engine is freed together with its threads.
        """
        with self._lock:
            if self._pool is None:
                known = (self._source.runtime, self._each, self._worker)
                self._pool = ThreadPoolExecutor(self.workers, initializer=_start, initargs=known)
            return [self._pool.submit(self._compute, compute, piece) for piece in pieces]

    def _shares_one(self, images: int) -> bool:
        """True if so few images would leave cores idle unless all cores share one batch."""
        rounds = -(-images // self.workers)
        return rounds * self.workers > UNEVEN * images

    def _cut(self, pixels: Images, parts: int) -> list[Images]:
        """Pieces that stay in the cache, nearly equal, and a multiple of `parts` of them."""
        if self._source.facts.batch is not None:
            return [pixels[number : number + 1] for number in range(len(pixels))]
        count = -(-len(pixels) // self._piece)
        count = min(len(pixels), -(-count // parts) * parts)
        return cast(list[Images], np.array_split(pixels, count))

    def _compute(self, compute: Compute, pixels: Images) -> Numbers:
        images = cast(Any, np.ascontiguousarray(pixels))
        if images.dtype == np.uint8 and not self._source.facts.preprocess_inside:
            images = self._source.preprocessing.normalise(images)
        found = compute(images)
        if found.shape[1] != (self._source.classes or found.shape[1]):
            raise WeightsError(
                f"{self._source.name}: {found.shape[1]} logits for each image; "
                f"valid: {self._source.classes}, one for each label"
            )
        return found

    def _check(self, pixels: NDArray[np.uint8] | NDArray[np.float32]) -> None:
        preprocessing = self._source.preprocessing
        shape = (preprocessing.channels, *preprocessing.size)
        if pixels.shape[1:] != shape or not len(pixels):
            valid = ", ".join(map(str, shape))
            raise InputError(f"images of shape {list(pixels.shape)}; valid: [batch, {valid}]")
        if pixels.dtype != np.uint8 and self._source.facts.preprocess_inside:
            raise InputError(
                f"{self._source.name} normalises images itself and takes 8-bit pixels; found "
                f"{pixels.dtype}"
            )


def _start(runtime: OpenedOnce, threads: int, worker: threading.local) -> None:
    runtime.start_thread(threads)
    worker.started = True
