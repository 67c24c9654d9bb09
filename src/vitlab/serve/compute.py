"""The compute thread: it owns the engine, and when free takes all that waits, up to a batch."""

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitlab.serve.metrics import Metrics
from vitlab.serve.settings import Refused

Engine = Any
"""A `vitlab.classify.predictor.Engine`."""
Task = NDArray[np.uint8] | Callable[[], Any]
"""An image, or a call that is computed between batches of images."""
SMOOTH = 0.2
"""Weight of the newest measurement in a mean time."""

log = logging.getLogger(__name__)


@dataclass(eq=False)
class Work:
    """One image, or one call, on its way through the compute thread."""

    task: Any
    expires: float
    loop: asyncio.AbstractEventLoop
    future: "asyncio.Future[Any]"
    queued: float = field(default_factory=time.monotonic)
    dropped: bool = False
    """The client has left, or its deadline has passed."""


class Compute:
    """One thread, an engine, and two queues in front of it, which take turns: images and calls."""

    def __init__(self, open_engine: Callable[[], Engine], *, max_batch: int, metrics: Metrics):
        """`open_engine` is called in the thread, which then warms the engine up."""
        self._open, self._max_batch, self._metrics = open_engine, max_batch, metrics
        self._images: deque[Work] = deque()
        self._calls: deque[Work] = deque()
        self._call_is_next = False
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="compute", daemon=True)
        self.seconds_per_image = self.seconds_per_call = 0.0

    @property
    def alive(self) -> bool:
        """True while the thread runs."""
        return self._thread.is_alive()

    def start(self, warm_up: Callable[[Engine], float]) -> "asyncio.Future[None]":
        """Start the thread; the result is set when the engine is warm.

        `warm_up` returns the seconds that an image takes.
        """
        self._loop = asyncio.get_running_loop()
        self._warm: asyncio.Future[None] = self._loop.create_future()
        self._warm_up = warm_up
        self._thread.start()
        return self._warm

    async def run(self, task: Task, expires: float) -> Any:
        """Result of an image (a row of predictions) or of a call in the compute thread."""
        loop = asyncio.get_running_loop()
        work = Work(task, expires, loop, loop.create_future())
        with self._changed:
            if self._closed:
                raise _ended()
            (self._calls if callable(task) else self._images).append(work)
            self._changed.notify()
        try:
            return await work.future
        finally:
            work.dropped = True

    def close(self) -> None:
        """Stop the thread after all that waits."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(10)

    def _run(self) -> None:
        try:
            engine = self._open()
            self.seconds_per_image = self._warm_up(engine)
        except BaseException as error:
            self._loop.call_soon_threadsafe(_fail, self._warm, error)
            return
        self._loop.call_soon_threadsafe(_succeed, self._warm, None)
        try:
            while batch := self._take():
                self._compute(engine, batch)
            engine.close()
        except BaseException:
            log.critical("the compute thread ends", exc_info=True)
        finally:
            self._refuse_all()

    def _refuse_all(self) -> None:
        with self._changed:
            self._closed = True
            waiting = [*self._images, *self._calls]
        for work in waiting:
            work.loop.call_soon_threadsafe(_fail, work.future, _ended())

    def _take(self) -> list[Work]:
        """Images that wait, up to a batch, or one call, in turn; empty: the end."""
        with self._changed:
            while True:
                turns = (self._take_call, self._take_images)
                first, second = turns if self._call_is_next else turns[::-1]
                batch = first() or second()
                if batch or self._closed:
                    self._call_is_next = bool(batch) and not callable(batch[0].task)
                    return batch
                self._changed.wait()

    def _take_call(self) -> list[Work]:
        while self._calls:
            work = self._calls.popleft()
            if not work.dropped and time.monotonic() < work.expires:
                return [work]
        return []

    def _take_images(self) -> list[Work]:
        """A batch that ends before the earliest deadline in it.

        Images that would be late are left out, unless there is nothing else to compute: the time
        of an image is only an estimate, and a new measurement corrects it.
        """
        now, each = time.monotonic(), self.seconds_per_image
        batch: list[Work] = []
        most = self._max_batch
        while self._images and len(batch) < most:
            work = self._images.popleft()
            left = work.expires - now
            if work.dropped or left <= 0 or (left < each and (batch or self._images)):
                continue
            batch.append(work)
            most = min(most, int(left / each)) if each else most
        return batch

    def _compute(self, engine: Engine, batch: list[Work]) -> None:
        begun, first = time.monotonic(), batch[0].task
        try:
            if callable(first):
                found: Any = [first()]
            else:
                found = engine.predict(np.stack([work.task for work in batch]))
        except BaseException as error:
            ends = not isinstance(error, Exception)
            for work in batch:
                reason = _ended() if ends else error
                work.loop.call_soon_threadsafe(_fail, work.future, reason)
            if ends:
                raise
            return
        seconds = time.monotonic() - begun
        if callable(first):
            self.seconds_per_call = smooth(self.seconds_per_call, seconds)
            self._metrics.called(seconds)
        else:
            self.seconds_per_image = smooth(self.seconds_per_image, seconds / len(batch))
            self._metrics.batch(len(batch), seconds)
        for work, row in zip(batch, found, strict=True):
            self._metrics.waited(begun - work.queued)
            work.loop.call_soon_threadsafe(_succeed, work.future, row)


def smooth(before: float, newest: float) -> float:
    """Mean in which older measurements count less and less; `before` 0: there are none."""
    return before + SMOOTH * (newest - before) if before else newest


def _ended() -> Refused:
    return Refused(503, "ended", "the server computes no more", {"connection": "close"})


def _succeed(future: "asyncio.Future[Any]", result: Any) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: "asyncio.Future[Any]", error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
