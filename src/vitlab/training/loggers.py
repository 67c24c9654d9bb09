"""Loggers: objects that receive every metric of a run, chosen by name (`loggers=wandb,mine`).

`vitlab.register("logger", "mine", factory)` adds one: `factory(run)` gets a `LoggedRun` and returns
a `Logger`. The built-in ones write into the folder of the run, and use the network only where an
environment variable of theirs asks for it.
"""

import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from io import FileIO
from pathlib import Path
from typing import Any, Protocol, TypedDict, runtime_checkable

from vitlab.errors import FileError, MissingExtra, UnknownName, VitlabError, one_line
from vitlab.io.files import replacing
from vitlab.registry import LOGGERS

PACKAGES = {"tensorboard": "torch.utils.tensorboard", "wandb": "wandb", "mlflow": "mlflow"}
"""Module that each built-in logger imports; the extra has the logger's name."""
PROJECT = "vitlab"
"""Project of W&B and experiment of MLflow if the environment gives none."""
PARAMETERS = 100
"""Maximum number of parameters in one call of MLflow."""

log = logging.getLogger(__name__)


class Metric(TypedDict):
    """One measured number."""

    step: int
    epoch: float
    split: str
    name: str
    value: float
    time: float
    """Seconds since 1970."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LoggedRun:
    """Description of a run for its loggers."""

    folder: Path
    step: int
    """Last step of the checkpoint that the run continues from; 0: a new run."""
    settings: Mapping[str, Any]
    """Training settings and the model's config, by dotted names."""


@runtime_checkable
class Logger(Protocol):
    """Receives the metrics of one run."""

    def write(self, metric: Metric) -> None:
        """Log one number."""
        ...

    def flush(self) -> None:
        """Store everything, before a checkpoint is written."""
        ...

    def close(self, *, finished: bool) -> None:
        """End the log; the run is not `finished` if it was interrupted or failed."""
        ...


class Loggers:
    """The loggers of a run; one that fails is dropped with a warning, and the run goes on."""

    def __init__(self, names: Sequence[str], run: LoggedRun) -> None:
        self._open: dict[str, Logger] = {}
        for name in names:
            with self._guarded(name):
                self._open[name] = LOGGERS[name](run)

    def write(self, metric: Metric) -> None:
        """Pass one number to each logger."""
        self._each(lambda logger: logger.write(metric))

    def flush(self) -> None:
        """Flush each logger."""
        self._each(lambda logger: logger.flush())

    def close(self, *, finished: bool) -> None:
        """Close each logger."""
        self._each(lambda logger: logger.close(finished=finished))

    def _each(self, call: Callable[[Logger], None]) -> None:
        for name, logger in list(self._open.items()):
            with self._guarded(name):
                call(logger)

    @contextmanager
    def _guarded(self, name: str) -> Iterator[None]:
        """Errors of vitlab, such as a full disk, end the run; those of other packages do not."""
        try:
            yield
        except VitlabError:
            raise
        except Exception as error:
            self._open.pop(name, None)
            log.warning(
                "logger %s: %s: %s; the run goes on without it",
                *(name, type(error).__name__, one_line(error)),
            )


def check_loggers(names: Sequence[str]) -> None:
    """Raise if a logger does not exist or its package is missing, before a run begins."""
    for name in names:
        if name not in LOGGERS:
            raise UnknownName("logger", name, LOGGERS)
        if name in PACKAGES:
            _package(name)


def _package(name: str) -> Any:
    """Import the package of a built-in logger, with its reports to its makers switched off."""
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    try:
        return import_module(PACKAGES[name])
    except ImportError as error:
        raise MissingExtra(name, f"loggers={name}") from error


class TensorBoard:
    """Event files in RUN/tensorboard; later steps in earlier files are marked as void."""

    def __init__(self, run: LoggedRun) -> None:
        self.folder = run.folder / "tensorboard"
        with self._writing():
            writer = _package("tensorboard").SummaryWriter
            self._writer = writer(str(self.folder), purge_step=run.step + 1)

    def write(self, metric: Metric) -> None:
        """Add one number."""
        with self._writing():
            self._writer.add_scalar(
                tag_of(metric), metric["value"], metric["step"], walltime=metric["time"]
            )

    def flush(self) -> None:
        """Write everything to the disk."""
        with self._writing():
            self._writer.flush()

    def close(self, *, finished: bool) -> None:
        """Close the file."""
        self._writer.close()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise FileError(f"{self.folder}: cannot be written ({error.strerror})") from error


class Wandb:
    """A run of Weights & Biases in RUN/wandb, offline unless WANDB_MODE says otherwise."""

    def __init__(self, run: LoggedRun) -> None:
        wandb = _package("wandb")
        known = _read_id(run.folder / "wandb")
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=run.folder.absolute().name,
            dir=str(run.folder),
            config=dict(run.settings),
            mode=os.environ.get("WANDB_MODE", "offline"),
            id=known,
            resume=None if known is None else "allow",
            settings=wandb.Settings(silent=True, console="off", disable_git=True, save_code=False),
        )
        _write_id(run.folder / "wandb", self._run.id)

    def write(self, metric: Metric) -> None:
        """Log one number; numbers of one step are stored together."""
        self._run.log({tag_of(metric): metric["value"]}, step=metric["step"])

    def flush(self) -> None:
        """Do nothing: a process of W&B stores the numbers as they come."""

    def close(self, *, finished: bool) -> None:
        """End the run, with exit code 1 if it is not finished."""
        self._run.finish(exit_code=0 if finished else 1)


class Mlflow:
    """A run of MLflow: files in RUN/mlflow, or the server that MLFLOW_TRACKING_URI names."""

    def __init__(self, run: LoggedRun) -> None:
        _package("mlflow")
        own = run.folder / "mlflow"
        uri = os.environ.get("MLFLOW_TRACKING_URI") or own.absolute().as_uri()
        if uri.startswith("file:"):
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        self._client = import_module("mlflow.tracking").MlflowClient(tracking_uri=uri)
        known = _read_id(own)
        self._id = self._new(run) if known is None else known
        self._logged: dict[str, int] | None = None if known is None else {}
        _write_id(own, self._id)
        self._client.set_terminated(self._id, "RUNNING")

    def write(self, metric: Metric) -> None:
        """Log one number, unless it was logged before an interruption."""
        tag, step = tag_of(metric), metric["step"]
        if self._logged is None or step > self._last(tag, self._logged):
            milliseconds = int(metric["time"] * 1000)
            self._client.log_metric(
                self._id, tag, metric["value"], timestamp=milliseconds, step=step
            )

    def flush(self) -> None:
        """Do nothing: each number is stored when it is logged."""

    def close(self, *, finished: bool) -> None:
        """Set the status of the run."""
        self._client.set_terminated(self._id, "FINISHED" if finished else "KILLED")

    def _new(self, run: LoggedRun) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        found = self._client.get_experiment_by_name(name)
        experiment = self._client.create_experiment(name) if found is None else found.experiment_id
        title = run.folder.absolute().name
        created: str = self._client.create_run(experiment, run_name=title).info.run_id
        parameter = import_module("mlflow.entities").Param
        listed = [parameter(key, str(value)) for key, value in run.settings.items()]
        for start in range(0, len(listed), PARAMETERS):
            self._client.log_batch(created, params=listed[start : start + PARAMETERS])
        return created

    def _last(self, tag: str, logged: dict[str, int]) -> int:
        """Last step of a metric before the run was resumed."""
        if tag not in logged:
            history = self._client.get_metric_history(self._id, tag)
            logged[tag] = max((entry.step for entry in history), default=0)
        return logged[tag]


def tag_of(metric: Metric) -> str:
    """Name of a metric in other programs, such as `train/loss`."""
    return f"{metric['split']}/{metric['name']}"


def _read_id(folder: Path) -> str | None:
    """Identifier of the run in another program, to continue it; None: a new one."""
    path = folder / "run-id.txt"
    return path.read_text().strip() if path.is_file() else None


def _write_id(folder: Path, identifier: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with replacing(folder / "run-id.txt") as file:
        file.write(f"{identifier}\n".encode())


# The log of a run: `metrics.jsonl`, a callback, and the loggers.

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
