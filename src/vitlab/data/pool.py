"""Decode in other processes: one thread per process sends tasks; pixels arrive in shared memory.

Threads and processes end with `close`, with the pool, or with the interpreter. Nothing is forked,
so the trainer's threads are safe, and no main module runs a second time. Imports no torch.
"""

import contextlib
import io
import json
import os
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from itertools import islice
from queue import Empty, SimpleQueue
from typing import IO, Any, BinaryIO, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from vitlab.data.shards.index import Index
from vitlab.data.shared_pixels import SUPPORTED, Buffer, Pin, SharedPixels
from vitlab.errors import InputError
from vitlab.images.decode import Decoder

Task = tuple[str | int, int]
"""Path, or number in an index, and seed of the random crop."""
READY = b"\n"
HEADER = struct.Struct("<?I")
"""Flag for pixels or a reason, and the number of bytes that follow: none for pixels in memory."""
Placed = tuple[str | int, int, int | None]
"""A task, and the place of its pixels in the shared file."""


def serve_tasks() -> None:
    """Serve standard input on standard output.

    The first line describes the decoder, and the descriptor of the file for pixels.
    """
    for number in (signal.SIGINT, signal.SIGTERM):  # the trainer's: it closes what it has opened
        signal.signal(number, signal.SIG_IGN)
    lines, answers = sys.stdin, sys.stdout.buffer
    setup = json.loads(next(lines))
    read = reader(
        Decoder.from_json(setup["decoder"]),
        None if setup["index"] is None else Index.from_json(setup["index"]),
    )
    answers.write(READY)
    answers.flush()
    for line in lines:
        serve(read, [tuple(task) for task in json.loads(line)], answers, setup["memory"])


Read = Callable[[str | int, int], NDArray[np.uint8]]
"""Pixels of a source, with the seed of its crop; raises InputError."""


def reader(decoder: Decoder, index: Index | None) -> Read:
    """Read a path, or a number in an index."""

    def read(source: str | int, seed: int) -> NDArray[np.uint8]:
        if isinstance(source, int):
            assert index is not None
            return decoder.read(index.image(source), seed)
        return decoder.read(source, seed)

    return read


def serve(
    read: Read, tasks: Iterable[Placed], answers: BinaryIO, memory: int | None = None
) -> None:
    """Send one answer per task, each as soon as it is ready."""
    for source, seed, offset in tasks:
        try:
            good, content = True, read(source, seed).data
        except InputError as error:
            good, content = False, memoryview(str(error).encode(errors="replace"))
        if good and memory is not None and offset is not None:
            os.pwrite(memory, content, offset)
            content = memoryview(b"")
        answers.write(HEADER.pack(good, content.nbytes))
        answers.write(content)
        answers.flush()


def command() -> list[str]:
    """Command of such a process: with this import path, and without the caller's main module."""
    start = "from vitlab.data.pool import serve_tasks; serve_tasks()"
    code = f"import sys; sys.path[:] = {sys.path!r}; {start}"
    return [sys.executable, "-c", code]


# A decoding process as seen by the trainer: started when needed, replaced when it dies.

Reasons = dict[int, str]
"""Reasons of unreadable images, by place in the batch."""
PATIENCE = 2
"""Number of processes that may die on the same file, or at start: one may be bad luck."""


class DecoderDied(RuntimeError):
    """Error for a decoding process that ended unexpectedly."""


class DecoderProcess:
    """One process, used by one thread."""

    def __init__(self, decoder: Decoder, index: Index | None, memory: SharedPixels | None) -> None:
        self._setup: dict[str, Any] = {
            "decoder": decoder.to_json(),
            "index": None if index is None else index.to_json(),
            "memory": None if memory is None else memory.descriptor,
        }
        self._errors: IO[bytes] | None = None
        self._popen: subprocess.Popen[bytes] | None = None

    def decode(self, tasks: Sequence[Task], buffer: Buffer) -> Reasons:
        """Fill the pixels [B, C, H, W] of a buffer."""
        pixels = buffer.pixels
        waiting = deque(enumerate(_placed(tasks, buffer)))
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

    def _ask(self, tasks: Sequence[Placed]) -> None:
        if self._popen is None:
            self._start()
        self._send(json.dumps(tasks))

    def _start(self) -> None:
        """Start a process and wait until it is ready; a failure here is not blamed on a file."""
        if self._errors is None:
            self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # closed with the process
        memory = self._setup["memory"]
        for _ in range(PATIENCE):
            self._popen = subprocess.Popen(
                command(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
                start_new_session=True,  # a Ctrl-C in the terminal reaches only the trainer
                pass_fds=() if memory is None else (memory,),
            )
            with suppress(DecoderDied, BrokenPipeError):
                self._send(json.dumps(self._setup))
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
            self._read(pixels.reshape(-1).data[:size])
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


def _placed(tasks: Sequence[Task], buffer: Buffer) -> Iterator[Placed]:
    size = buffer.pixels[0].nbytes
    for place, (source, seed) in enumerate(tasks):
        yield source, seed, None if buffer.offset is None else buffer.offset + place * size


T = TypeVar("T")
CHUNK = 8
"""Number of tasks sent at a time."""
LAST_WORDS = 5.0
"""Seconds that a thread may take to end."""


class Job(NamedTuple):
    """Neighbouring places of a batch, filled in place."""

    tasks: Sequence[Task]
    buffer: Buffer
    """Kept here while a process may write to it, also if nothing else needs it any more."""
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

    def __init__(
        self,
        decoder: Decoder,
        *,
        workers: int,
        index: Index | None = None,
        pin: Pin | None = None,
    ) -> None:
        """`index` is that of tasks by number; `pin` page-locks the memory of the pixels."""
        self.decoder = decoder
        self._read = reader(decoder, index)
        self.workers = workers
        self._jobs: Jobs = SimpleQueue()
        self._memory = SharedPixels(pin) if workers and SUPPORTED else None
        threads = [
            threading.Thread(
                target=_work, args=(decoder, index, self._memory, self._jobs), daemon=True
            )
            for _ in range(workers)
        ]
        for thread in threads:
            thread.start()
        self._end = weakref.finalize(self, _end, self._jobs, threads, self._memory)

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
        buffer = self._buffer((len(tasks), *self.decoder.shape))
        jobs = [
            Job(tasks[start : start + CHUNK], _part(buffer, start), Future())
            for start in range(0, len(tasks), CHUNK)
        ]
        for job in jobs:
            if self.workers:
                self._jobs.put(job)
            else:
                job.done.set_result(_decode_here(self._read, job))
        return Pending(buffer.pixels, jobs)

    def _buffer(self, shape: tuple[int, ...]) -> Buffer:
        if self._memory is None:
            return Buffer(np.empty(shape, np.uint8), None)
        return self._memory.take(shape)

    def close(self) -> None:
        """Stop all processes; a second call does nothing."""
        self._end()


def _part(buffer: Buffer, start: int) -> Buffer:
    """Part of a buffer for one job."""
    pixels, offset = buffer
    offset = None if offset is None else offset + start * pixels[0].nbytes
    return Buffer(pixels[start : start + CHUNK], offset)


def _decode_here(read: Read, job: Job) -> Reasons:
    reasons = {}
    for place, (source, seed) in enumerate(job.tasks):
        try:
            job.buffer.pixels[place] = read(source, seed)
        except InputError as error:
            reasons[place] = str(error)
    return reasons


def _work(decoder: Decoder, index: Index | None, memory: SharedPixels | None, jobs: Jobs) -> None:
    """Main loop of a thread."""
    with contextlib.closing(DecoderProcess(decoder, index, memory)) as process:
        while job := jobs.get():
            if not job.done.set_running_or_notify_cancel():
                continue
            try:
                job.done.set_result(process.decode(job.tasks, job.buffer))
            except Exception as error:  # raised again in `wait`
                job.done.set_exception(error)


def _end(jobs: Jobs, threads: Sequence[threading.Thread], memory: SharedPixels | None) -> None:
    with contextlib.suppress(Empty):
        while True:
            if job := jobs.get_nowait():
                job.done.cancel()
    for _ in threads:
        jobs.put(None)
    for thread in threads:
        if thread is not threading.current_thread():  # garbage is collected by any thread
            thread.join(LAST_WORDS)
    if memory is not None:
        memory.close()


# Whether decoding limits the speed of a training.

READING_SHARE, READING_SECONDS = 0.3, 20.0
"""Share of the time spent waiting for images from which on a hint is given, and when to look."""


class ReadingTime:
    """Share of the time of a training that is spent waiting for its images."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began: float | None = None
        self._waited = 0.0
        self._hinted = False

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count this block as waiting; the first one, in which processes start, is left out."""
        before = self._clock()
        yield
        now = self._clock()
        if self._began is None:
            self._began = now
        else:
            self._waited += now - before

    def hint(self, workers: int, *, advised: int) -> str | None:
        """Advice if reading limits the speed, once; None otherwise."""
        elapsed = 0.0 if self._began is None else self._clock() - self._began
        if self._hinted or elapsed < READING_SECONDS:
            return None
        self._hinted = True
        share = self._waited / elapsed
        if share < READING_SHARE:
            return None
        if workers < advised:
            remedy = "--workers auto decodes them in other processes, also with --resume"
        else:
            remedy = "files of fewer pixels are read faster"
        return f"reading images takes {share:.0%} of the training time; {remedy}"
