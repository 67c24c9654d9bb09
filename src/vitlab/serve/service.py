"""The way of a request's images: admitted, decoded, computed; each stage is bounded."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitlab.classify.classifier import Classifier
from vitlab.classify.predictor import Engine
from vitlab.serve.compute import Compute
from vitlab.serve.decoding import Decoders, Shown, first_refusal
from vitlab.serve.inside import Inside
from vitlab.serve.metrics import Metrics
from vitlab.serve.settings import Refused, Settings

Row = NDArray[np.float32]


class Service:
    """A classifier behind a queue: one event loop, decoding processes and a compute thread."""

    def __init__(
        self,
        classifier: Classifier,
        settings: Settings,
        open_network: Callable[[], Classifier] | None = None,
    ) -> None:
        """`open_network` as in `Inside`; a classifier in torch needs none."""
        own = classifier.model is not None
        self.inside = Inside((lambda: classifier) if own else open_network)
        self.classifier, self.settings, self.metrics = classifier, settings, Metrics()
        self.predictor = classifier.predictor(batch_size=settings.max_batch)
        self.decoders = Decoders(
            classifier.preprocessing,
            count=settings.decoders,
            seconds=settings.deadline,
            max_pixels=settings.max_pixels,
        )
        self.compute = Compute(
            lambda: self.predictor.engine, max_batch=settings.max_batch, metrics=self.metrics
        )
        self.ready, self.draining = False, False
        self.images, self.held = 0, 0
        self.metrics.watch_queue(lambda: self.images)

    async def start(self) -> None:
        """Start the stages; the service is ready after a warm-up."""
        self.decoders.start()
        warm = self.compute.start(self._warm_up)
        await self.decoders.ready()
        await warm
        self.ready = True

    async def close(self) -> None:
        """Stop all stages."""
        self.ready = False
        self.inside.close()
        await asyncio.to_thread(self.compute.close)
        await self.decoders.close()

    def _warm_up(self, engine: Engine) -> None:
        """Compute a lone image and a whole batch, which engines may compute in other ways."""
        shape = (self.predictor.preprocessing.channels, *self.predictor.preprocessing.size)
        for images in sorted({1, self.settings.max_batch}):
            engine.predict(np.zeros((images, *shape), np.uint8))

    def check_open(self) -> None:
        """Refuse early: before the body of a request is read."""
        if self.draining:
            raise Refused(503, "draining", "the server is shutting down", {"connection": "close"})
        if not self.ready:
            raise Refused(503, "starting", "the model is being loaded", {"retry-after": "1"})
        if self.images >= self.settings.max_queue:
            raise self._busy()

    @contextmanager
    def admitted(self, images: int) -> Iterator[None]:
        """Count images while they are worked on; Refused if there are too many already."""
        if self.images + images > self.settings.max_queue:
            raise self._busy()
        self.images += images
        try:
            yield
        finally:
            self.images -= images

    @contextmanager
    def holding(self) -> Iterator["Memory"]:
        """Count the bytes of a body while it is in memory."""
        memory = Memory(self)
        try:
            yield memory
        finally:
            self.held -= memory.taken

    def _busy(self) -> Refused:
        seconds = ceil(self.images * self.compute.seconds_per_image) or 1
        return Refused(
            429,
            "busy",
            f"{self.images} images are waiting; valid: at most {self.settings.max_queue}",
            {"retry-after": str(seconds)},
        )

    async def pixels(
        self, images: Sequence[bytes], expires: float
    ) -> "list[NDArray[np.uint8] | Refused]":
        """Pixels of each image, or its refusal; Refused if none can be read."""
        return await self._decoded([self.decoders.decode(image, expires) for image in images])

    async def shown(self, images: Sequence[bytes], expires: float) -> "list[Shown | Refused]":
        """Each image with its pixels, or its refusal; Refused if none can be read."""
        return await self._decoded([self.decoders.decode_whole(one, expires) for one in images])

    async def _decoded(self, work: Sequence[Awaitable[Any]]) -> list[Any]:
        begun = time.monotonic()
        found: list[Any] = await asyncio.gather(*work, return_exceptions=True)
        self.metrics.decoded(time.monotonic() - begun)
        for one in found:
            if isinstance(one, BaseException) and not isinstance(one, Refused):
                raise one
        refusal = first_refusal(found)
        if refusal is not None and all(isinstance(one, Refused) for one in found):
            raise refusal
        return found

    async def predict(self, images: Sequence[bytes], expires: float) -> "list[Row | Refused]":
        """Predictions of each image, or its refusal."""
        found = await self.pixels(images, expires)
        return await each_good(found, lambda one: self.compute.run(one, expires))


async def each_good(found: Sequence[Any], work: Callable[[Any], Awaitable[Any]]) -> list[Any]:
    """Result of `work` for each image that was read; refusals stay in their places."""
    good = [one for one in found if not isinstance(one, Refused)]
    results = iter(await asyncio.gather(*map(work, good)))
    return [one if isinstance(one, Refused) else next(results) for one in found]


class Memory:
    """Bytes that one request holds."""

    def __init__(self, service: Service) -> None:
        self._service, self.taken = service, 0

    def take(self, size: int) -> None:
        """Reserve bytes; Refused if all requests together would hold too many."""
        if self._service.held + size > self._service.settings.max_memory:
            raise Refused(429, "memory", "too many uploads at once", {"retry-after": "1"})
        self._service.held += size
        self.taken += size
