"""`metrics.jsonl`: one object a line, and the same to whoever watches."""

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import TypedDict

from vitlab.errors import FileError, MissingExtra
from vitlab.io.files import replacing

# Metrics as TensorBoard's event files, for whoever asks for them.


def check_tensorboard() -> None:
    """One clear line, before a run begins, if the package is missing."""
    try:
        import torch.utils.tensorboard  # noqa: F401
    except ImportError as error:
        raise MissingExtra("tensorboard", "tensorboard=true") from error


class EventLog:
    """A folder of event files; what earlier ones say of later steps is marked as void."""

    def __init__(self, folder: Path, *, after_step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.folder = folder
        with self._writing():
            self._writer = SummaryWriter(str(folder), purge_step=after_step + 1)

    def write(self, tag: str, value: float, *, step: int, time: float) -> None:
        """Add one number; `time` in seconds since 1970."""
        with self._writing():
            self._writer.add_scalar(tag, value, step, walltime=time)

    def flush(self) -> None:
        """Bring everything to the disk."""
        with self._writing():
            self._writer.flush()

    def close(self) -> None:
        """Let go of the file."""
        self._writer.close()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise FileError(f"{self.folder}: cannot be written ({error.strerror})") from error


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
    """Appends metrics to a file, which begins with what the checkpoint knows, and nothing else."""

    def __init__(
        self, path: Path, *, before: str, watch: Watch, events: EventLog | None = None
    ) -> None:
        self.path = path
        self.watch = watch
        self.events = events
        self._text = [before]
        with replacing(path) as file:
            file.write(before.encode())
        with self._writing():
            self._file = path.open("ab", buffering=0)

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
        line = json.dumps(metric) + "\n"
        self._text.append(line)
        with self._writing():
            _write_all(self._file, line.encode())
        if self.events is not None:
            self.events.write(f"{split}/{name}", value, step=step, time=metric["time"])
        self.watch(metric)

    def flush(self) -> str:
        """Bring everything to the disk and return it."""
        if self.events is not None:
            self.events.flush()
        with self._writing():
            os.fsync(self._file.fileno())
        return "".join(self._text)

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()
        if self.events is not None:
            self.events.close()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise FileError(f"{self.path}: cannot be written ({error.strerror})") from error


def _write_all(file: FileIO, data: bytes) -> None:
    """A nearly full disk takes a part of a line and refuses the rest."""
    while data:
        data = data[file.write(data) :]
