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
SMOOTH = 0.2
"""Weight of the newest batch in the mean time of an image."""

log = logging.getLogger(__name__)


@dataclass(eq=False)
class Work:
    """One image, or one call, on its way through the compute thread."""

    task: "NDArray[np.uint8] | Callable[[], Any]"
    expires: float
    loop: asyncio.AbstractEventLoop
    future: "asyncio.Future[Any]"
    queued: float = field(default_factory=time.monotonic)
    dropped: bool = False
    """The client has left, or its deadline has passed."""


class Compute:
    """One thread, an engine, and the queue in front of it."""

    def __init__(self, open_engine: Callable[[], Engine], *, max_batch: int, metrics: Metrics):
        """`open_engine` is called in the thread, which then warms the engine up."""
        self._open, self._max_batch, self._metrics = open_engine, max_batch, metrics
        self._waiting: deque[Work] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="compute", daemon=True)
        self.seconds_per_image = 0.0

    def start(self, warm_up: Callable[[Engine], None]) -> "asyncio.Future[None]":
        """Start the thread; the result is set when the engine is warm."""
        self._loop = asyncio.get_running_loop()
        self._warm: asyncio.Future[None] = self._loop.create_future()
        self._warm_up = warm_up
        self._thread.start()
        return self._warm

    async def run(self, task: "NDArray[np.uint8] | Callable[[], Any]", expires: float) -> Any:
        """Result of an image (a row of predictions) or of a call in the compute thread."""
        loop = asyncio.get_running_loop()
        work = Work(task, expires, loop, loop.create_future())
        with self._changed:
            if self._closed:
                raise Refused(503, "draining", "the server is shutting down")
            self._waiting.append(work)
            self._changed.notify()
        try:
            return await work.future
        finally:
            work.dropped = True

    def close(self) -> None:
        """Stop the thread after the batch that it computes."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(10)

    def _run(self) -> None:
        try:
            engine = self._open()
            self._warm_up(engine)
        except BaseException as error:
            self._loop.call_soon_threadsafe(_fail, self._warm, error)
            return
        self._loop.call_soon_threadsafe(_succeed, self._warm, None)
        while batch := self._take():
            self._compute(engine, batch)
        engine.close()

    def _take(self) -> list[Work]:
        """All that waits, up to a batch of images, or one call; empty: the end."""
        with self._changed:
            while True:
                batch: list[Work] = []
                while self._waiting and len(batch) < self._max_batch:
                    if callable(self._waiting[0].task) and batch:
                        break
                    work = self._waiting.popleft()
                    if work.dropped or time.monotonic() > work.expires:
                        continue
                    batch.append(work)
                    if callable(work.task):
                        break
                if batch or self._closed:
                    return batch
                self._changed.wait()

    def _compute(self, engine: Engine, batch: list[Work]) -> None:
        begun = time.monotonic()
        try:
            first = batch[0].task
            if callable(first):
                found: Any = [first()]
            else:
                found = engine.predict(np.stack([work.task for work in batch]))  # type: ignore[misc]
        except Exception as error:
            for work in batch:
                work.loop.call_soon_threadsafe(_fail, work.future, error)
            return
        seconds = time.monotonic() - begun
        each = seconds / len(batch)
        before = self.seconds_per_image or each
        self.seconds_per_image = before + SMOOTH * (each - before)
        self._metrics.batch(len(batch), seconds)
        for work, row in zip(batch, found, strict=True):
            self._metrics.waited(begun - work.queued)
            work.loop.call_soon_threadsafe(_succeed, work.future, row)


def _succeed(future: "asyncio.Future[Any]", result: Any) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: "asyncio.Future[Any]", error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
