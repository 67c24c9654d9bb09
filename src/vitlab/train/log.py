"""`metrics.jsonl`: one object a line, and the same to whoever watches."""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypedDict

from vitlab.errors import FileError
from vitlab.train.events import EventLog


class Metric(TypedDict):
    """One measured number."""

    step: int
    epoch: float
    split: str
    name: str
    value: float
    time: float
    """Seconds since 1970."""


Watch = Callable[[Metric], None]


class MetricLog:
    """Appends metrics to a file; on resuming, what came after the checkpoint is cut off."""

    def __init__(
        self, path: Path, *, keep_bytes: int, watch: Watch, events: EventLog | None = None
    ) -> None:
        self.path = path
        self.watch = watch
        self.events = events
        try:
            self._file = path.open("a+b")
            self._file.truncate(keep_bytes)
        except OSError as error:
            raise FileError(f"{path}: cannot be written ({error.strerror})") from error

    def write(self, *, step: int, epoch: float, split: str, name: str, value: float) -> None:
        """Add one number."""
        metric: Metric = {
            "step": step,
            "epoch": round(epoch, 6),
            "split": split,
            "name": name,
            "value": value,
            "time": time.time(),
        }
        try:
            self._file.write(json.dumps(metric).encode() + b"\n")
        except OSError as error:
            raise FileError(f"{self.path}: cannot be written ({error.strerror})") from error
        if self.events is not None:
            self.events.write(f"{split}/{name}", value, step=step, time=metric["time"])
        self.watch(metric)

    def flush(self) -> int:
        """Bring everything to the disk and return the length of the file."""
        if self.events is not None:
            self.events.flush()
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise FileError(f"{self.path}: cannot be written ({error.strerror})") from error
        return self._file.tell()

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()
        if self.events is not None:
            self.events.close()
