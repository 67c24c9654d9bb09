"""The engine that runs an exported model: each core computes small batches of its own."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from vitlab.errors import InputError
from vitlab.inference.answers import Numbers, answer
from vitlab.inference.batch_size import MOST_WORKERS, check_weights, fitting, within_memory
from vitlab.inference.runtimes import Compute, Images, Runtime
from vitlab.kinds import Task
from vitlab.preprocessing import Preprocessing
from vitlab.runtime import cores, keep_freed_memory
from vitlab.weights.deployed import Facts

UNEVEN = 1.25
"""Time of the slowest core against the mean, from which on all cores rather share one batch."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """A file that a runtime computes, and what is known of it."""

    runtime: Runtime
    name: str
    facts: Facts
    preprocessing: Preprocessing
    task: Task


class SessionEngine:
    """Cores that compute small batches side by side, or one image together."""

    def __init__(
        self, source: Source, *, batch_size: int | None = None, threads: int | None = None
    ) -> None:
        check_weights(source.name, source.facts.weight_bytes)
        keep_freed_memory()
        self._source = source
        self._threads = threads or cores()
        self._worker = threading.local()
        self._lock = threading.Lock()
        self._computes: dict[tuple[int, int], Compute] = {}
        self.workers = min(self._threads, MOST_WORKERS)
        piece = source.facts.batch or within_memory(
            fitting(source.facts.output_bytes),
            peak_bytes=source.facts.peak_bytes,
            workers=self.workers,
        )
        self._piece = piece
        self.batch_size = batch_size or piece

    def start_worker(self) -> None:
        """This thread will compute whole batches, beside others."""
        self._source.runtime.start_thread(self._each)
        self._worker.started = True

    def predict(self, pixels: Images) -> Numbers:
        """Probabilities [B, classes] of pixels [B, C, H, W]: 8 bits, or normalised already."""
        return answer(self.logits(pixels), self._source.task)

    def logits(self, pixels: Images) -> Numbers:
        """What the file computes; a batch that no worker called for is shared out to all cores."""
        self._check(pixels)
        if getattr(self._worker, "started", False):
            pieces = self._cut(pixels, 1)
            return np.concatenate([self._compute(self._side_by_side, piece) for piece in pieces])
        if self._shares_one(len(pixels)):
            pieces = self._cut(pixels, 1)
            return np.concatenate([self._compute(self._together, piece) for piece in pieces])
        pieces = self._cut(pixels, self.workers)
        side_by_side = self._side_by_side
        return np.concatenate(
            list(self._pool.map(lambda piece: self._compute(side_by_side, piece), pieces))
        )

    def close(self) -> None:
        """Let go of the threads that shared batches."""
        if "_pool" in self.__dict__:
            self._pool.shutdown()
            del self._pool

    @property
    def _each(self) -> int:
        return max(1, self._threads // self.workers)

    @property
    def _side_by_side(self) -> Compute:
        return self._opened(threads=self._each, callers=self.workers)

    @property
    def _together(self) -> Compute:
        return self._opened(threads=self._threads, callers=1)

    def _opened(self, *, threads: int, callers: int) -> Compute:
        """The model for this use; loaded once, whoever asks first."""
        with self._lock:
            if (threads, callers) not in self._computes:
                opened = self._source.runtime.open(threads=threads, callers=callers)
                self._computes[threads, callers] = opened
            return self._computes[threads, callers]

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self.workers, initializer=self.start_worker)

    def _shares_one(self, images: int) -> bool:
        """Whether so many images leave cores idle unless all work on the same."""
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
        return compute(images)

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
