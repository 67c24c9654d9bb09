"""Memory for the pixels of batches that decoding processes fill in place; imports no torch.

An unnamed file: nothing is left behind, however a process ends, and no limit of a container on
`/dev/shm` applies. A buffer is used again as soon as nothing refers to its pixels.
"""

import math
import mmap
import os
import tempfile
import threading
import weakref
from collections import defaultdict
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]
Pin = Callable[[Pixels], Callable[[], None]]
"""Page-lock memory for fast copies to an accelerator; returns the function that releases it."""
SUPPORTED = hasattr(os, "pwrite")
"""True where processes can inherit the file; elsewhere pixels go through pipes."""


class Buffer(NamedTuple):
    """Room for the pixels of one batch."""

    pixels: Pixels
    offset: int | None
    """Place of the pixels in the shared file; None: memory of this process alone."""


class _Mapped(np.ndarray):
    """Array that every view of a buffer refers to; past one of its own type NumPy would skip."""


class SharedPixels:
    """Buffers in a file of this process, given to others by its descriptor."""

    def __init__(self, pin: Pin | None = None) -> None:
        self._file = _unnamed_file()
        self._size = 0
        self._pin = pin
        self._lock = threading.Lock()
        self._free: defaultdict[int, list[tuple[mmap.mmap, int]]] = defaultdict(list)
        self._release: list[Callable[[], None]] = []
        self._end = weakref.finalize(self, _close, self._file, self._release)

    @property
    def descriptor(self) -> int:
        """Open file, for a process that is started."""
        return self._file

    def take(self, shape: tuple[int, ...]) -> Buffer:
        """Buffer that nothing else uses, of any content."""
        size = -(-math.prod(shape) // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
        with self._lock:
            memory, offset = self._free[size].pop() if self._free[size] else self._grow(size)
        array = _Mapped(math.prod(shape), np.uint8, memory)
        weakref.finalize(array, self._free[size].append, (memory, offset)).atexit = False
        return Buffer(array.view(np.ndarray).reshape(shape), offset)

    def close(self) -> None:
        """Give the memory back; buffers that are still referred to stay valid."""
        self._end()

    def _grow(self, size: int) -> tuple[mmap.mmap, int]:
        offset, self._size = self._size, self._size + size
        os.ftruncate(self._file, self._size)
        memory = mmap.mmap(self._file, size, offset=offset)
        if self._pin is not None:
            self._release.append(self._pin(np.frombuffer(memory, np.uint8)))
        return memory, offset


def _unnamed_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("vitlab-pixels", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _close(file: int, release: list[Callable[[], None]]) -> None:
    while release:
        release.pop()()
    os.close(file)
