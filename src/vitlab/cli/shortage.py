"""Errors that the machine causes: a full disk, too few file descriptors or processes."""

import errno
import os
from types import ModuleType

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
