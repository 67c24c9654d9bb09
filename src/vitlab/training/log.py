"""Metrics of a run: lines of `metrics.jsonl`, a callback, and the loggers of the run."""

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import Protocol, runtime_checkable

from vitlab.errors import FileError
from vitlab.io.files import replacing
from vitlab.training.loggers import Loggers, Metric

Watch = Callable[[Metric], None]


@runtime_checkable
class Log(Protocol):
    """Receiver of the metrics of a run."""

    def write(self, *, step: int, epoch: float, split: str, name: str, value: float) -> None:
        """Add one number."""
        ...

    def flush(self) -> str:
        """Bring everything to the disk and return it."""
        ...

    def close(self, *, finished: bool) -> None:
        """Close what is open."""
        ...


class NoLog:
    """Log of a process that writes nothing, since the first process does."""

    def write(self, *, step: int, epoch: float, split: str, name: str, value: float) -> None:
        pass

    def flush(self) -> str:
        return ""

    def close(self, *, finished: bool) -> None:
        pass


class MetricLog:
    """Appends metrics to a file, which starts with the metrics of the checkpoint."""

    def __init__(self, path: Path, *, before: str, watch: Watch, loggers: Loggers) -> None:
        self.path = path
        self.watch = watch
        self.loggers = loggers
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
        self.loggers.write(metric)
        self.watch(metric)

    def flush(self) -> str:
        """Bring everything to the disk and return it."""
        self.loggers.flush()
        with self._writing():
            os.fsync(self._file.fileno())
        return "".join(self._text)

    def close(self, *, finished: bool) -> None:
        """Close the file and the loggers."""
        self._file.close()
        self.loggers.close(finished=finished)

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
