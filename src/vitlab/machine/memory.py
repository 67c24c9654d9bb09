"""Memory that this process may still allocate."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# The control groups that Linux puts around a process: the limits of a container.


@dataclass(frozen=True, kw_only=True)
class ControlGroup:
    """A folder of limits, in version 2 or version 1 of Linux's layout."""

    folder: Path
    second: bool


def control_groups(controller: str, root: Path = Path("/")) -> Iterator[ControlGroup]:
    """Every group around this process that may limit `memory` or `cpu`, the inner ones first."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        base = root / "sys/fs/cgroup"
        group = Path(path.lstrip("/"))
        for folder in (group, *group.parents):
            yield ControlGroup(
                folder=(base / controller if controllers else base) / folder,
                second=not controllers,
            )


def free_bytes(root: Path = Path("/")) -> int | None:
    """Bytes that may still be allocated: the system's, or less in a container; None: unknown."""
    known = [*_system_bytes(root), *_container_bytes(root)]
    return max(min(known), 0) if known else None


def _system_bytes(root: Path) -> Iterator[int]:
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
    except OSError:
        if "SC_PHYS_PAGES" in os.sysconf_names:  # not Linux: half of the installed memory
            yield os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
        return
    for line in lines:
        if line.startswith("MemAvailable:"):
            yield int(line.split()[1]) * 1024


def _container_bytes(root: Path) -> Iterator[int]:
    """Free bytes within every control group around this process."""
    for group in control_groups("memory", root):
        if group.second:
            yield from _left_in(group.folder, "memory.max", "memory.current")
        else:
            yield from _left_in(group.folder, "memory.limit_in_bytes", "memory.usage_in_bytes")


def _left_in(group: Path, limit: str, used: str) -> Iterator[int]:
    try:
        allowed, taken = (group / limit).read_text(), (group / used).read_text()
        stat = (group / "memory.stat").read_text().splitlines()
    except OSError:
        return
    if allowed.strip() == "max":
        return
    # Page cache: released as soon as memory is needed.
    cached = sum(int(line.split()[1]) for line in stat if line.startswith("inactive_file "))
    yield int(allowed) - int(taken) + cached
