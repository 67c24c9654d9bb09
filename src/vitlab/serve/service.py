"""The way of a request's images: admitted, decoded, computed; each stage is bounded."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitlab.classify.classifier import Classifier
from vitlab.classify.predictor import Engine
from vitlab.serve.claims import Claim, Load
from vitlab.serve.compute import Compute, smooth
from vitlab.serve.decoding import Decoders, Shown, first_refusal
from vitlab.serve.metrics import Metrics
from vitlab.serve.settings import Refused, Settings
from vitlab.serve.torch_network import TorchNetwork

Row = NDArray[np.float32]


class Service:
    """A classifier behind a queue: one event loop, decoding processes and a compute thread."""

    def __init__(
        self,
        classifier: Classifier,
        settings: Settings,
        open_network: Callable[[], Classifier] | None = None,
        warm_up: Callable[[], None] | None = None,
    ) -> None:
        """`open_network` as in `Inside`; a classifier in torch needs none.

        `warm_up` is called in the compute thread before the service is ready.
        """
        self._also = warm_up
        own = classifier.model is not None
        self.inside = TorchNetwork((lambda: classifier) if own else open_network)
        self.classifier, self.settings, self.metrics = classifier, settings, Metrics()
        self.predictor = classifier.predictor(batch_size=settings.max_batch)
        self.decoders = Decoders(
            classifier.preprocessing,
            count=settings.decoders,
            seconds=settings.deadline,
            max_pixels=settings.max_pixels,
            decoded=self._decoded_one,
        )
        self.compute = Compute(
            lambda: self.predictor.engine, max_batch=settings.max_batch, metrics=self.metrics
        )
        self._decode_seconds = 0.0
        self.warm, self.draining = False, False
        self.load = Load(settings, self._times)
        self.metrics.watch_queue(lambda: self.load.images)

    @property
    def alive(self) -> bool:
        """True unless a stage that was started has ended."""
        return not self.warm or (self.compute.alive and self.decoders.alive)

    @property
    def ready(self) -> bool:
        """True if requests are accepted."""
        return self.warm and self.alive and not self.draining

    def _times(self) -> tuple[float, float]:
        """Seconds that an image takes, and a call: those of the slowest stage."""
        decoding = self._decode_seconds / self.settings.decoders
        return (
            max(decoding, self.compute.seconds_per_image),
            max(decoding, self.compute.seconds_per_call),
        )

    def _decoded_one(self, waited: float, seconds: float) -> None:
        self._decode_seconds = smooth(self._decode_seconds, seconds)
        self.metrics.decoded(waited, seconds)

    async def start(self) -> None:
        """Start the stages; the service is ready after a warm-up."""
        self.decoders.start()
        warm = self.compute.start(self._warm_up)
        await self.decoders.ready()
        await warm
        self.warm = True

    async def close(self) -> None:
        """Stop all stages."""
        self.warm = False
        self.inside.close()
        await asyncio.to_thread(self.compute.close)
        await self.decoders.close()

    def _warm_up(self, engine: Engine) -> float:
        """Compute a lone image and a batch, which engines may compute in other ways.

        Returns the seconds of an image in that batch, which is a whole one if it ends within the
        deadline.
        """
        shape = (self.predictor.preprocessing.channels, *self.predictor.preprocessing.size)
        images, seconds = 1, 0.0
        for _ in range(2):
            begun = time.monotonic()
            engine.predict(np.zeros((images, *shape), np.uint8))
            seconds = (time.monotonic() - begun) / images
            fitting = self.settings.deadline / max(seconds, 1e-6)
            images = max(1, min(self.settings.max_batch, int(fitting)))
        if self._also is not None:
            self._also()
        return seconds

    def check_open(self) -> None:
        """Refuse early: before the body of a request is read."""
        if self.draining:
            raise Refused(503, "draining", "the server is shutting down", {"connection": "close"})
        if not self.warm:
            raise Refused(503, "starting", "the model is being loaded", {"retry-after": "1"})
        self.load.check()

    @contextmanager
    def holding(self) -> Iterator[Claim]:
        """Count the bytes of a body while it is in memory."""
        claim = Claim(self.load)
        try:
            yield claim
        finally:
            claim.release()

    @contextmanager
    def admitted(self, images: int) -> Iterator[None]:
        """Count images while they are worked on; Refused if there are too many already."""
        with self.holding() as claim:
            claim.admit(images)
            yield

    async def pixels(
        self, images: Sequence[bytes], expires: float
    ) -> "list[NDArray[np.uint8] | Refused]":
        """Pixels of each image, or its refusal; Refused if none can be read."""
        return await self._decoded([self.decoders.decode(image, expires) for image in images])

    async def shown(self, images: Sequence[bytes], expires: float) -> "list[Shown | Refused]":
        """Each image with its pixels, or its refusal; Refused if none can be read."""
        return await self._decoded([self.decoders.decode_whole(one, expires) for one in images])

    async def _decoded(self, work: Sequence[Awaitable[Any]]) -> list[Any]:
        found: list[Any] = await asyncio.gather(*work, return_exceptions=True)
        for one in found:
            if isinstance(one, BaseException) and not isinstance(one, Refused):
                raise one
            if isinstance(one, Refused):
                one.__traceback__ = None  # its frames hold the image
        refusal = first_refusal(found)
        if refusal is not None and all(isinstance(one, Refused) for one in found):
            raise refusal
        return found

    async def predict(self, images: Sequence[bytes], expires: float) -> "list[Row | Refused]":
        """Predictions of each image, or its refusal."""
        found = await self.pixels(images, expires)
        good = [one for one in found if not isinstance(one, Refused)]
        rows = iter(await asyncio.gather(*(self.compute.run(one, expires) for one in good)))
        return [one if isinstance(one, Refused) else next(rows) for one in found]
