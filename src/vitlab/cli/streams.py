"""Standard streams that are closed, full, or that nobody reads."""

import errno
import os
import sys
from contextlib import suppress
from types import ModuleType
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


# Errors that the machine causes: a full disk, too few file descriptors or processes.

resource: ModuleType | None
try:  # now, since an import later needs a file descriptor itself
    import resource
except ImportError:  # Windows
    resource = None

TOO_MANY_FILES = (os.strerror(errno.EMFILE), os.strerror(errno.ENFILE))
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)
NO_MORE = (errno.EAGAIN, errno.ENOMEM)
"""No further process, or no memory for it."""


def shortage_in(error: Exception) -> str | None:
    """Describe the shortage behind an error, and the remedy; None for any other error."""
    if any(words in str(error) for words in TOO_MANY_FILES):
        return f"too many open files: {_limit()}raise it, or use fewer workers"
    if isinstance(error, OSError) and error.filename is None:
        return error.strerror if error.errno in (*NO_ROOM, *NO_MORE) else None
    return None


def _limit() -> str:
    if resource is None:
        return "the system allows no more; "
    return f"the limit is {resource.getrlimit(resource.RLIMIT_NOFILE)[0]:,} (ulimit -n); "
