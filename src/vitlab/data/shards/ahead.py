"""Copies of shards that are made before they are needed, by threads of the training process."""

import logging
import threading
from collections.abc import Sequence

import numpy as np

from vitlab.data.shards.cache import LIMIT, cache_limit
from vitlab.data.shards.index import Index

THREADS = 4
"""Copies that are made at the same time."""

log = logging.getLogger(__name__)


class CopiesAhead:
    """Threads that make copies of the blocks of an index, in the order in which they are wanted."""

    def __init__(self, index: Index, *, window: int) -> None:
        """`window` is the number of blocks that are read at the same time."""
        self._index = index
        self._sizes = index.block_size
        self._limit = cache_limit()
        self._waiting: list[int] = []
        self._known: set[int] = set()
        self._ready = threading.Condition()
        self._closed = False
        needed = int(np.sort(self._sizes)[-window:].sum())
        if needed > self._limit:
            log.warning(
                "%s is %d bytes, and %d shards that are shuffled together need up to %d: shards "
                "will be copied again and again; set %s, or a smaller shard_window",
                *(LIMIT, self._limit, min(window, len(self._sizes)), needed, LIMIT),
            )
        for _ in range(THREADS):
            threading.Thread(target=self._work, daemon=True).start()

    def want(self, now: Sequence[int], later: Sequence[int]) -> None:
        """Copy the blocks that are read `now`, and those for `later` if all of them find room."""
        both = [*now, *later]
        wanted = both if int(self._sizes[both].sum()) <= self._limit else list(now)
        with self._ready:
            self._known &= set(wanted)
            self._waiting = [block for block in wanted if block not in self._known]
            self._ready.notify_all()

    def close(self) -> None:
        """Start no further copy."""
        with self._ready:
            self._closed, self._waiting = True, []
            self._ready.notify_all()

    def _work(self) -> None:
        while True:
            with self._ready:
                while not self._waiting and not self._closed:
                    self._ready.wait()
                if self._closed:
                    return
                block = self._waiting.pop(0)
                self._known.add(block)
            self._index.fetch(block)
