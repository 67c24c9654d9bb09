"""Decode in other processes: one thread per process sends tasks and receives pixels.

Threads and processes end with `close`, with the pool, or with the interpreter. Nothing is forked,
so the trainer's threads are safe, and no main module runs a second time.
"""

import contextlib
import io
import json
import os
import subprocess
import tempfile
import threading
import weakref
from collections import deque
from collections.abc import Generator, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from itertools import islice
from queue import Empty, SimpleQueue
from typing import IO, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from vitlab.data.loading.worker import HEADER, READY, Task, command
from vitlab.errors import InputError
from vitlab.images.decode import Decoder

# A decoding process as seen by the trainer: started when needed, replaced when it dies.

Reasons = dict[int, str]
"""Reasons of unreadable images, by place in the batch."""
PATIENCE = 2
"""Number of processes that may die on the same file, or at start: one may be bad luck."""


class DecoderDied(RuntimeError):
    """Error for a decoding process that ended unexpectedly."""


class DecoderProcess:
    """One process, used by one thread."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        self._errors: IO[bytes] | None = None
        self._popen: subprocess.Popen[bytes] | None = None

    def decode(self, tasks: Sequence[Task], pixels: NDArray[np.uint8]) -> Reasons:
        """Fill `pixels` [B, C, H, W]."""
        waiting = deque(enumerate(tasks))
        reasons: Reasons = {}
        deaths, asked = 0, False
        while waiting:
            place, _ = waiting[0]
            try:
                if not asked:
                    self._ask([task for _, task in waiting])
                    asked = True
                reason = self._answer(pixels[place])
            except (DecoderDied, BrokenPipeError):
                deaths, asked = deaths + 1, False
                code = self.stop()
                if deaths < PATIENCE:
                    continue
                reason = f"kills the process that decodes it (exit code {code})"
            deaths = 0
            waiting.popleft()
            if reason is not None:
                reasons[place] = reason
        return reasons

    def stop(self) -> int:
        """Stop the process, if it runs; return its exit code."""
        popen, self._popen = self._popen, None
        if popen is None:
            return 0
        for stream in (popen.stdin, popen.stdout):
            assert stream is not None
            with suppress(BrokenPipeError):
                stream.close()
        return popen.wait()

    def close(self) -> None:
        """Stop the process for good."""
        self.stop()
        if self._errors is not None:
            self._errors.close()

    def _ask(self, tasks: Sequence[Task]) -> None:
        if self._popen is None:
            self._start()
        self._send(json.dumps(tasks))

    def _start(self) -> None:
        """Start a process and wait until it is ready; a failure here is not blamed on a file."""
        if self._errors is None:
            self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # closed with the process
        for _ in range(PATIENCE):
            self._popen = subprocess.Popen(
                command(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
                start_new_session=True,  # a Ctrl-C in the terminal reaches only the trainer
            )
            with suppress(DecoderDied, BrokenPipeError):
                self._send(json.dumps(self._decoder.to_json()))
                self._read(bytearray(len(READY)))
                return
            code = self.stop()
        self._errors.seek(0)
        told = self._errors.read().decode(errors="replace").strip()
        raise RuntimeError(f"no decoding process can start (exit code {code}): {told}")

    def _send(self, line: str) -> None:
        assert self._popen is not None
        assert self._popen.stdin is not None
        self._popen.stdin.write(line.encode() + b"\n")
        self._popen.stdin.flush()

    def _answer(self, pixels: NDArray[np.uint8]) -> str | None:
        """Reason for missing pixels; None: there are pixels."""
        header = bytearray(HEADER.size)
        self._read(header)
        good, size = HEADER.unpack(header)
        if good:
            self._read(pixels.reshape(-1).data)
            return None
        reason = bytearray(size)
        self._read(reason)
        return reason.decode()

    def _read(self, buffer: bytearray | memoryview) -> None:
        """Fill the buffer."""
        assert self._popen is not None
        stream = self._popen.stdout
        assert isinstance(stream, io.BufferedReader)
        if stream.readinto(buffer) != len(buffer):
            raise DecoderDied


T = TypeVar("T")
CHUNK = 8
"""Number of tasks sent at a time."""
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
        """Pixels [B, C, H, W] and the reasons of unreadable images, by place."""
        reasons = {
            number * CHUNK + place: reason
            for number, job in enumerate(self.jobs)
            for place, reason in job.done.result().items()
        }
        return self.pixels, reasons

    def cancel(self) -> None:
        """Mark the result as no longer needed."""
        for job in self.jobs:
            job.done.cancel()


class DecoderPool:
    """Pool of decoding processes; without workers, the caller decodes."""

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
        """Each decoded batch, with the data given with its tasks; `ahead` more are in progress."""
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
        """Start to decode a batch."""
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
        """Stop all processes; a second call does nothing."""
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
    """Main loop of a thread."""
    with contextlib.closing(DecoderProcess(decoder)) as process:
        while job := jobs.get():
            if not job.done.set_running_or_notify_cancel():
                continue
            try:
                job.done.set_result(process.decode(job.tasks, job.pixels))
            except Exception as error:  # raised again in `wait`
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
