"""Prometheus metrics of a server: waiting, decoding and computing apart, and what was refused."""

from collections.abc import Callable
from typing import Any

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
IMAGES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
CONTENT_TYPE = CONTENT_TYPE_LATEST


class Metrics:
    """All metrics of one server, in a registry of its own."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        whole: Any = {"registry": self._registry, "namespace": "vitlab"}
        self._queue = Gauge("queue_images", "Images that are accepted and not answered.", **whole)
        stages = {
            "wait": "Seconds that an image waited for the engine.",
            "decode_wait": "Seconds that an image waited for a decoder.",
            "decode": "Seconds that an image took in a decoder.",
            "compute": "Seconds that a batch of images took in the engine.",
            "call": "Seconds that features, a map or attention weights of an image took.",
        }
        self._stages = {
            name: Histogram(f"{name}_seconds", text, buckets=SECONDS, **whole)
            for name, text in stages.items()
        }
        self._batch = Histogram("batch_images", "Images of a batch.", buckets=IMAGES, **whole)
        self._requests = Counter("requests", "Answered requests.", ("path", "status"), **whole)
        self._rejected = Counter("rejected", "Refused requests.", ("reason",), **whole)

    def watch_queue(self, images: Callable[[], float]) -> None:
        """Read the length of the queue when the metrics are read."""
        self._queue.set_function(images)

    def waited(self, seconds: float) -> None:
        """An image that waited for the engine."""
        self._stages["wait"].observe(seconds)

    def decoded(self, waited: float, seconds: float) -> None:
        """An image that was decoded, and waited before."""
        self._stages["decode_wait"].observe(waited)
        self._stages["decode"].observe(seconds)

    def batch(self, images: int, seconds: float) -> None:
        """A batch that was computed."""
        self._batch.observe(images)
        self._stages["compute"].observe(seconds)

    def called(self, seconds: float) -> None:
        """A call that was computed."""
        self._stages["call"].observe(seconds)

    def answered(self, path: str, status: int) -> None:
        """A request that was answered."""
        self._requests.labels(path, str(status)).inc()

    def rejected(self, reason: str) -> None:
        """A request that was refused."""
        self._rejected.labels(reason).inc()

    def text(self) -> bytes:
        """All values in Prometheus' text format."""
        return generate_latest(self._registry)
