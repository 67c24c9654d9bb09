"""SIGINT and SIGTERM between trainings: an exception at once, since every file is written whole."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class StopNow(KeyboardInterrupt):
    """Somebody asked the process to end."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.signal = number


@contextmanager
def signals_raise() -> Iterator[None]:
    """Raise `StopNow` on either signal; training itself catches them and saves its state first."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        raise StopNow(number)

    caught: tuple[int, ...] = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, stop) for number in caught}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
