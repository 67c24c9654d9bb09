"""Decoding in other processes: a thread for each of them hands out tasks and takes in pixels.

Threads and processes end with `close`, with the pool, or with the interpreter. Nothing is forked,
so the trainer's threads are no danger, and nobody's main module runs a second time.
"""

import contextlib
import threading
import weakref
from collections import deque
from collections.abc import Generator, Iterable, Sequence
from concurrent.futures import Future
from itertools import islice
from queue import Empty, SimpleQueue
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from vitlab.data.decode import Decoder
from vitlab.data.decoder_process import DecoderProcess, Reasons
from vitlab.data.worker import Task
from vitlab.errors import InputError

T = TypeVar("T")
CHUNK = 8
"""Tasks handed out at a time."""
LAST_WORDS = 5.0
"""Seconds that a thread may take to end."""


class Job(NamedTuple):
    """Neighbouring places of a batch, filled in place."""

    tasks: Sequence[Task]
    pixels: NDArray[np.uint8]
    done: "Future[Reasons]"


Jobs = SimpleQueue[Job | None]


class Pending(NamedTuple):
    """A batch that is being decoded."""

    pixels: NDArray[np.uint8]
    jobs: Sequence[Job]

    def wait(self) -> tuple[NDArray[np.uint8], Reasons]:
        """The pixels [B, C, H, W] and what is wrong, by place."""
        reasons = {
            number * CHUNK + place: reason
            for number, job in enumerate(self.jobs)
            for place, reason in job.done.result().items()
        }
        return self.pixels, reasons

    def cancel(self) -> None:
        """Nobody will wait for this any more."""
        for job in self.jobs:
            job.done.cancel()


class DecoderPool:
    """Processes that decode; with no workers, the caller does it."""

    def __init__(self, decoder: Decoder, *, workers: int) -> None:
        self.decoder = decoder
        self.workers = workers
        self._jobs: Jobs = SimpleQueue()
        threads = [
            threading.Thread(target=_work, args=(decoder, self._jobs), daemon=True)
            for _ in range(workers)
        ]
        for thread in threads:
            thread.start()
        self._end = weakref.finalize(self, _end, self._jobs, threads)

    def stream(
        self, batches: Iterable[tuple[T, Sequence[Task]]], *, ahead: int
    ) -> Generator[tuple[T, NDArray[np.uint8], Reasons], None, None]:
        """Each batch decoded, with what came along with its tasks; `ahead` more are under way."""
        waiting: deque[tuple[T, Pending]] = deque()
        batches = iter(batches)
        try:
            while True:
                wanted = 1 + (ahead if self.workers else 0) - len(waiting)
                waiting.extend((key, self.submit(tasks)) for key, tasks in islice(batches, wanted))
                if not waiting:
                    return
                key, pending = waiting.popleft()
                yield key, *pending.wait()
        finally:
            for _, pending in waiting:
                pending.cancel()

    def submit(self, tasks: Sequence[Task]) -> Pending:
        """Begin to decode a batch."""
        if not self._end.alive:
            raise RuntimeError("the decoding processes have been closed")
        pixels = np.empty((len(tasks), *self.decoder.shape), np.uint8)
        jobs = [
            Job(tasks[start : start + CHUNK], pixels[start : start + CHUNK], Future())
            for start in range(0, len(tasks), CHUNK)
        ]
        for job in jobs:
            if self.workers:
                self._jobs.put(job)
            else:
                job.done.set_result(_decode_here(self.decoder, job))
        return Pending(pixels, jobs)

    def close(self) -> None:
        """End all processes; a second call does nothing."""
        self._end()


def _decode_here(decoder: Decoder, job: Job) -> Reasons:
    reasons = {}
    for place, (path, seed) in enumerate(job.tasks):
        try:
            job.pixels[place] = decoder.read(path, seed)
        except InputError as error:
            reasons[place] = str(error)
    return reasons


def _work(decoder: Decoder, jobs: Jobs) -> None:
    """A thread's life."""
    with contextlib.closing(DecoderProcess(decoder)) as process:
        while job := jobs.get():
            if not job.done.set_running_or_notify_cancel():
                continue
            try:
                job.done.set_result(process.decode(job.tasks, job.pixels))
            except Exception as error:  # raised again where the batch is waited for
                job.done.set_exception(error)


def _end(jobs: Jobs, threads: Sequence[threading.Thread]) -> None:
    with contextlib.suppress(Empty):
        while True:
            if job := jobs.get_nowait():
                job.done.cancel()
    for _ in threads:
        jobs.put(None)
    for thread in threads:
        if thread is not threading.current_thread():  # garbage is collected by any thread
            thread.join(LAST_WORDS)
