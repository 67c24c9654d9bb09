"""The control groups that Linux puts around a process: where a container says what it may use."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class ControlGroup:
    """A folder of limits, in the second of Linux's layouts or in the first."""

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
