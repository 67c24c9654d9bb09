"""SIGINT and SIGTERM as a flag: the step under way ends, the state is saved, then we go."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Stop:
    """Whether, and by which signal, the run was asked to stop."""

    signal: int | None = None


@contextmanager
def stop_signals() -> Iterator[Stop]:
    """Catch the signals meanwhile; outside of the main thread nothing can be caught."""
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def note(number: int, frame: FrameType | None) -> None:
        if stop.signal is not None:
            signal.signal(number, before[number])
            signal.raise_signal(number)
        stop.signal = number

    caught: tuple[int, ...] = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.getsignal(number) for number in caught}
    for number in before:
        signal.signal(number, note)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
