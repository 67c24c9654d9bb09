"""Decode uploads in other processes: a decoder that hangs or crashes costs one request.

`vitlab.data.pool` decodes files by path; an upload is bytes in memory and must never be a file, so
these processes receive the bytes on standard input. Imports no torch.
"""

import asyncio
import json
import logging
import os
import signal
import struct
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from vitlab.config import parse_json
from vitlab.errors import InputError, SeveralFrames, TooLarge
from vitlab.explain.limits import LONGEST
from vitlab.images.pixels import read_both, reading, shown
from vitlab.images.preprocessing import Preprocessing
from vitlab.serve.settings import Refused

HEADER = struct.Struct("<HI")
"""Status as in HTTP, or what is wanted of an image, and the number of bytes that follow."""
SIZES = struct.Struct("<IIIIB")
"""Height and width of an image, width, height and channels of its reduced version."""
OK = 200
PIXELS, WHOLE = 0, 1
"""Wanted outputs: the input of the model, or also the image itself, reduced."""
FIRST = asyncio.FIRST_COMPLETED
RETRY = 1.0
"""Seconds until a process that could not be started is started again."""
Pixels = NDArray[np.uint8]

log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Shown:
    """An image as input of the model, and reduced for display."""

    pixels: Pixels
    picture: Image.Image
    size: tuple[int, int]
    """Height and width of the whole image."""


def main() -> None:
    """Decode images from standard input to standard output; the first line is the setting."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the server finishes what it has accepted
    stdin, stdout = sys.stdin.buffer, sys.stdout.buffer
    given = parse_json(stdin.readline())
    preprocessing = Preprocessing.from_json(given["preprocessing"])
    with reading(given["max_pixels"]):
        _answer(stdout, OK, b"")
        while size := stdin.read(HEADER.size):
            wanted, length = HEADER.unpack(size)
            _answer(stdout, *decode(stdin.read(length), preprocessing, wanted))


def decode(content: bytes, preprocessing: Preprocessing, wanted: int) -> tuple[int, bytes]:
    """200 and pixels [C, H, W] (see `WHOLE`), or the status of an error and its message."""
    try:
        whole, pixels = read_both(BytesIO(content), preprocessing)
    except InputError as error:
        return status_of(error), str(error).encode(errors="replace")
    return OK, pixels.tobytes() + (_reduced(shown(whole)) if wanted == WHOLE else b"")


def _reduced(picture: Image.Image) -> bytes:
    size = (picture.height, picture.width)
    picture.thumbnail((LONGEST, LONGEST))
    return SIZES.pack(*size, *picture.size, len(picture.getbands())) + picture.tobytes()


def parse_shown(answer: bytes, preprocessing: Preprocessing) -> Shown:
    """Image of a decoder's answer to a request for `WHOLE`."""
    shape = (preprocessing.channels, *preprocessing.size)
    length = int(np.prod(shape))
    pixels = np.frombuffer(answer, np.uint8, length).reshape(shape)
    height, width, *small, bands = SIZES.unpack_from(answer, length)
    mode = "L" if bands == 1 else "RGB"
    picture = Image.frombytes(mode, (small[0], small[1]), answer[length + SIZES.size :])
    return Shown(pixels, picture, (height, width))


def status_of(error: InputError) -> int:
    """Status of the answer about an image that cannot be read."""
    causes = (error, error.__cause__)
    if any(isinstance(cause, TooLarge) for cause in causes):
        return 413
    if any(isinstance(cause, SeveralFrames | UnidentifiedImageError) for cause in causes):
        return 415
    return 400


def _answer(stdout: BinaryIO, status: int, content: bytes) -> None:
    stdout.write(HEADER.pack(status, len(content)) + content)
    stdout.flush()


@dataclass(eq=False)
class Job:
    """An image on its way to a decoder."""

    content: bytes
    wanted: int
    expires: float
    found: "asyncio.Future[bytes]"
    queued: float = field(default_factory=time.monotonic)


class Decoders:
    """Pool of decoding processes, each used by one task of the event loop."""

    def __init__(
        self,
        preprocessing: Preprocessing,
        *,
        count: int,
        seconds: float,
        max_pixels: int | None,
        decoded: Callable[[float, float], None] = lambda waited, seconds: None,
    ) -> None:
        """`seconds` is the most that one image may take; `decoded` is called after each."""
        self._preprocessing, self._decoded = preprocessing, decoded
        self._count, self._seconds, self._max_pixels = count, seconds, max_pixels
        self._waiting: asyncio.Queue[Job] = asyncio.Queue()
        self._tasks: list[asyncio.Task[None]] = []
        self._started: list[asyncio.Event] = []
        self._processes: set[asyncio.subprocess.Process] = set()

    @property
    def alive(self) -> bool:
        """True while every process is looked after."""
        return not any(task.done() for task in self._tasks)

    def start(self) -> None:
        """Start the processes."""
        self._started = [asyncio.Event() for _ in range(self._count)]
        self._tasks = [asyncio.create_task(self._work(event)) for event in self._started]

    async def ready(self) -> None:
        """Wait until every process can decode."""
        for event, task in zip(self._started, self._tasks, strict=True):
            started = asyncio.create_task(event.wait())
            await asyncio.wait({started, cast("asyncio.Task[Any]", task)}, return_when=FIRST)
            if task.done():
                task.result()

    async def decode(self, content: bytes, expires: float) -> Pixels:
        """Pixels of an image; Refused if it cannot be read. `expires` as in `time.monotonic`."""
        answer = await self._answer(content, expires, PIXELS)
        shape = (self._preprocessing.channels, *self._preprocessing.size)
        return np.frombuffer(answer, np.uint8).reshape(shape)

    async def decode_whole(self, content: bytes, expires: float) -> Shown:
        """Pixels of an image, and the image itself, reduced."""
        return parse_shown(await self._answer(content, expires, WHOLE), self._preprocessing)

    async def _answer(self, content: bytes, expires: float, wanted: int) -> bytes:
        if not content:
            raise Refused(400, "image", "an empty image; valid: the bytes of an image file")
        job = Job(content, wanted, expires, asyncio.get_running_loop().create_future())
        self._waiting.put_nowait(job)
        try:
            return await job.found
        finally:
            job.content = b""  # of a client that has left, it would stay until its turn

    async def close(self) -> None:
        """Stop the processes."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for process in tuple(self._processes):
            await self._end(process)

    async def _work(self, started: asyncio.Event) -> None:
        process = await self._start()
        started.set()
        while True:
            job = await self._waiting.get()
            begun = time.monotonic()
            if job.found.done() or begun > job.expires:
                continue
            try:
                status, answer = await asyncio.wait_for(_ask(process, job), self._seconds)
            except (TimeoutError, OSError, EOFError) as error:
                late = isinstance(error, TimeoutError)
                reason = "takes too long to decode" if late else "ends the process that decodes it"
                _settle(job.found, 400, reason.encode())
                await self._end(process)
                process = await self._restart()
                continue
            self._decoded(begun - job.queued, time.monotonic() - begun)
            _settle(job.found, status, answer)

    async def _restart(self) -> asyncio.subprocess.Process:
        """A new process; on a machine without memory or processes to spare, later."""
        while True:
            try:
                return await self._start()
            except (OSError, EOFError) as error:
                log.warning("a decoding process cannot be started: %s", error)
                await asyncio.sleep(RETRY)

    async def _start(self) -> asyncio.subprocess.Process:
        code = "from vitlab.serve.decoding import main; main()"
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", f"import sys; sys.path[:] = {sys.path!r}; {code}"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
            start_new_session=True,  # a Ctrl-C in the terminal reaches only the server
            limit=1 << 20,
        )
        self._processes.add(process)
        line = _settings_line(self._preprocessing, self._max_pixels)
        cast(asyncio.StreamWriter, process.stdin).write(line)
        await _receive(process)
        return process

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        self._processes.discard(process)
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def _settings_line(preprocessing: Preprocessing, max_pixels: int | None) -> bytes:
    given = {"preprocessing": preprocessing.to_json(), "max_pixels": max_pixels}
    return json.dumps(given).encode() + b"\n"


def _settle(found: "asyncio.Future[bytes]", status: int, answer: bytes) -> None:
    if found.done():
        return
    if status == OK:
        found.set_result(answer)
    else:
        found.set_exception(Refused(status, "image", answer.decode(errors="replace")))


async def _ask(process: asyncio.subprocess.Process, job: Job) -> tuple[int, bytes]:
    stdin = cast(asyncio.StreamWriter, process.stdin)
    stdin.writelines([HEADER.pack(job.wanted, len(job.content)), job.content])
    await stdin.drain()
    return await _receive(process)


async def _receive(process: asyncio.subprocess.Process) -> tuple[int, bytes]:
    stdout = cast(asyncio.StreamReader, process.stdout)
    status, size = HEADER.unpack(await stdout.readexactly(HEADER.size))
    return status, await stdout.readexactly(size)


def first_refusal(found: Sequence[object]) -> Refused | None:
    """The first refused image of several; None: all can be read."""
    return next((one for one in found if isinstance(one, Refused)), None)
