"""Resources of a request until its answer is sent: images in the queue, bytes in memory."""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

from vitlab.serve.settings import Refused, Settings

SHARE = 0.8
"""Part of the deadline that the work of all accepted images may take."""
ANSWERS = 0.25
"""Part of the memory that answers to clients that read slowly may take."""
SMALL = 1 << 16
"""Bytes of an answer that the system's buffers hold."""


@dataclass
class Load:
    """Totals of all requests."""

    settings: Settings
    times: Callable[[], tuple[float, float]]
    """Seconds that an image takes, and a call."""
    images: int = 0
    """Images that are accepted, and whose results are not there."""
    calls: int = 0
    """Those of them that are computed one by one: features, maps, attention."""
    bodies: int = 0
    """Bytes of bodies."""
    answers: int = 0
    """Bytes of answers that are not sent."""

    @property
    def seconds(self) -> float:
        """Time that the accepted images take."""
        return self._seconds(self.images, self.calls)

    def _seconds(self, images: int, calls: int) -> float:
        each, call = self.times()
        return (images - calls) * each + calls * call

    def check(self, images: int = 1, calls: int = 0) -> None:
        """Refuse images that would wait too long; with nothing to wait for, none are refused."""
        settings, waiting = self.settings, self.images
        most = SHARE * settings.deadline
        seconds = self._seconds(waiting + images, self.calls + calls)
        if waiting + images > settings.max_queue or (waiting and seconds > most):
            raise Refused(
                429,
                "busy",
                f"{waiting} images are waiting, {self.seconds:.1f} s of work; "
                f"valid: at most {settings.max_queue} images and {most:g} s",
                {"retry-after": str(ceil(self.seconds) or 1)},
            )


class Claim:
    """Images and bytes of one request."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self.images = self.calls = self.bodies = self.answer = 0

    def admit(self, images: int, *, calls: bool = False) -> None:
        """Count images while they are worked on; Refused if there are too many already."""
        each = images if calls else 0
        self._load.check(images, each)
        self._count(images, each)

    def computed(self) -> None:
        """Stop counting images."""
        self._count(-self.images, -self.calls)

    def _count(self, images: int, calls: int) -> None:
        self.images, self.calls = self.images + images, self.calls + calls
        self._load.images += images
        self._load.calls += calls

    def take(self, size: int) -> None:
        """Reserve bytes of a body; Refused if all requests together would hold too many."""
        if self._load.bodies + size > self._load.settings.memory:
            raise _full("too many uploads at once")
        self._load.bodies += size
        self.bodies += size

    def hold_answer(self, length: int) -> None:
        """Reserve bytes of an answer that has this length so far; Refused as above."""
        size = length - self.answer
        if length <= SMALL or size <= 0:
            return
        if self._load.answers + size > ANSWERS * self._load.settings.memory:
            raise _full("too many answers that are not read")
        self._load.answers += size
        self.answer += size

    def release(self) -> None:
        """Give back all."""
        self.computed()
        self._load.bodies -= self.bodies
        self._load.answers -= self.answer
        self.bodies = self.answer = 0


def _full(message: str) -> Refused:
    return Refused(429, "memory", message, {"retry-after": "1"})
