"""Standard streams that are closed, full, or that nobody reads."""

import os
import sys
from contextlib import suppress
from typing import TextIO


def open_closed_streams() -> None:
    """Open the null device in place of closed standard streams.

    Otherwise the next file that is opened gets the number of a standard stream, and everything
    that is printed goes into it.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            stream = open(number, "r" if name == "stdin" else "w", closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)


def settle(stream: TextIO) -> None:
    """Write what a stream still holds back, or discard it if that fails.

    Otherwise the interpreter tries again when it ends, and ends with a code of its own.
    """
    try:
        stream.flush()
    except OSError:
        with suppress(OSError):
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, stream.fileno())
            os.close(null)
