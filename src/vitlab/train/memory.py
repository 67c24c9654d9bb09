"""How much memory there is, and how much of it an update takes."""

import os
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

CPU_MESSAGES = ("can't allocate memory", "not enough memory")
"""What torch says when the system gives it no memory."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether this is the device, torch or Python saying that there is no memory left."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(m in str(error) for m in CPU_MESSAGES)


class PeakMemory(TorchDispatchMode):
    """Counts the bytes of what operations made and nobody has let go of, and their peak."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.peak = 0
        self._alive: set[int] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        given = {s._cdata for s in _storages((args, kwargs))}
        for storage in _storages(result):
            if storage._cdata not in given | self._alive:
                self._count(storage)
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        self._alive.add(key)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._forget, key, size)

    def _forget(self, key: int, size: int) -> None:
        self._alive.discard(key)
        self.now -= size


def _storages(tree: Any) -> Iterator[torch.UntypedStorage]:
    return (leaf.untyped_storage() for leaf in tree_leaves(tree) if isinstance(leaf, Tensor))


def free_bytes(root: Path = Path("/")) -> int | None:
    """Memory that a process may still take: the system's, or less in a container; None: unknown."""
    known = [*_system_bytes(root), *_container_bytes(root)]
    return max(min(known), 0) if known else None


def _system_bytes(root: Path) -> Iterator[int]:
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
    except OSError:
        if "SC_PHYS_PAGES" in os.sysconf_names:  # no Linux: half of what is built in
            yield os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
        return
    for line in lines:
        if line.startswith("MemAvailable:"):
            yield int(line.split()[1]) * 1024


def _container_bytes(root: Path) -> Iterator[int]:
    """What every control group around this process leaves, in both of Linux's layouts."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:
            base, limit, used = "sys/fs/cgroup", "memory.max", "memory.current"
        elif "memory" in controllers.split(","):
            base = "sys/fs/cgroup/memory"
            limit, used = "memory.limit_in_bytes", "memory.usage_in_bytes"
        else:
            continue
        group = Path(path.lstrip("/"))
        for folder in (group, *group.parents):
            yield from _left_in(root / base / folder, limit, used)


def _left_in(group: Path, limit: str, used: str) -> Iterator[int]:
    try:
        allowed, taken = (group / limit).read_text(), (group / used).read_text()
        stat = (group / "memory.stat").read_text().splitlines()
    except OSError:
        return
    if allowed.strip() == "max":
        return
    # Pages of files that were read: given up as soon as memory is asked for.
    cached = sum(int(line.split()[1]) for line in stat if line.startswith("inactive_file "))
    yield int(allowed) - int(taken) + cached
