"""The logger hook: W&B and MLflow get the lines of `metrics.jsonl`; a failing one ends no run."""

import json
import logging
import random
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tiny_runs import CHANGES, fit_noise, metrics_of
from vitlab.errors import MissingExtra, UnknownName
from vitlab.jobs.train import train
from vitlab.registry import LOGGERS, register
from vitlab.training.config import TrainConfig
from vitlab.training.loggers import LoggedRun, Metric

Logged = list[tuple[str, int, float]]


def logged(run: Path) -> Logged:
    """Tag, step and value of every line of `metrics.jsonl`."""
    return sorted((f"{m['split']}/{m['name']}", m["step"], m["value"]) for m in metrics_of(run))


def rounded(found: Logged) -> list[tuple[str, int, Any]]:
    return [(tag, step, pytest.approx(value)) for tag, step, value in found]


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Environment without settings of the packages, which the loggers change."""
    for name in ("WANDB_MODE", "MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.delenv(name, raising=False)
    for name in ("WANDB_ERROR_REPORTING", "MLFLOW_DISABLE_TELEMETRY", "MLFLOW_ALLOW_FILE_STORE"):
        monkeypatch.setenv(name, "false" if name == "WANDB_ERROR_REPORTING" else "true")


HEADER, BLOCK = 7, 1 << 15
"""Bytes of the headers of file and chunk, and of a block, in LevelDB's log format."""


def records(data: bytes) -> Iterator[bytes]:
    """Records of a file in LevelDB's log format, which W&B writes."""
    place, record = HEADER, b""
    while place + HEADER <= len(data):
        if BLOCK - place % BLOCK < HEADER:
            place += BLOCK - place % BLOCK
            continue
        _, length, kind = struct.unpack("<IHB", data[place : place + HEADER])
        record += data[place + HEADER : place + HEADER + length]
        place += HEADER + length
        if kind in (1, 4):  # a whole record, or its last part
            yield record
            record = b""


def wandb_rows(run: Path) -> tuple[Logged, set[str]]:
    """Numbers in W&B's own files, each once, and the identifiers of their runs."""
    from wandb.proto.wandb_internal_pb2 import Record

    found, identifiers = set(), set()
    for path in (run / "wandb").glob("offline-run-*/*.wandb"):
        identifiers.add(path.stem.removeprefix("run-"))
        for data in records(path.read_bytes()):
            record = Record.FromString(data)
            if not record.HasField("history"):
                continue
            row = {i.key or i.nested_key[0]: json.loads(i.value_json) for i in record.history.item}
            found |= {(tag, row["_step"], v) for tag, v in row.items() if not tag.startswith("_")}
    return sorted(found), identifiers


@pytest.mark.usefixtures("quiet")
def test_wandb_offline_after_an_interruption_is_one_run(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    with pytest.raises(KeyboardInterrupt):
        fit_noise(tmp_path, steps=7, plug=5, loggers=("wandb",), checkpoint_every=3)
    fit_noise(tmp_path, steps=7, loggers=("wandb",), checkpoint_every=3)
    rows, identifiers = wandb_rows(tmp_path)
    assert rows == rounded(logged(tmp_path))
    assert len(identifiers) == 1


@pytest.mark.usefixtures("quiet")
def test_mlflow_files_show_every_step_once(tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    from mlflow.tracking import MlflowClient

    seed = random.randrange(99)
    changes: dict[str, Any] = {"loggers": ("mlflow",), "checkpoint_every": 3, "seed": seed}
    with pytest.raises(KeyboardInterrupt):
        fit_noise(tmp_path, steps=7, plug=5, **changes)
    client = MlflowClient(tracking_uri=(tmp_path / "mlflow").as_uri())
    identifier = (tmp_path / "mlflow" / "run-id.txt").read_text().strip()
    assert client.get_run(identifier).info.status == "KILLED"
    fit_noise(tmp_path, steps=7, **changes)
    run = client.get_run(identifier)
    assert (run.info.status, run.data.params["seed"]) == ("FINISHED", str(seed))
    history = [(tag, client.get_metric_history(identifier, tag)) for tag in run.data.metrics]
    found = sorted((tag, entry.step, entry.value) for tag, entries in history for entry in entries)
    assert found == rounded(logged(tmp_path))


class Notes:
    """A logger of one's own: what it got, and how it ended."""

    runs: list["Notes"]

    def __init__(self, run: LoggedRun) -> None:
        self.run, self.metrics, self.ends = run, list[Metric](), list[bool]()
        self.runs.append(self)

    def write(self, metric: Metric) -> None:
        self.metrics.append(metric)

    def flush(self) -> None:
        pass

    def close(self, *, finished: bool) -> None:
        self.ends.append(finished)


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> type[Notes]:
    monkeypatch.setattr(LOGGERS, "_entries", dict(LOGGERS._entries))
    Notes.runs = []
    return register("logger", "notes", Notes)


def test_a_registered_logger_gets_run_metrics_and_end(notes: type[Notes], tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        fit_noise(tmp_path, steps=5, plug=3, loggers=("notes",), checkpoint_every=2)
    fit_noise(tmp_path, steps=5, loggers=("notes",), checkpoint_every=2)
    first, second = notes.runs
    assert (first.run.step, second.run.step, first.ends, second.ends) == (0, 2, [False], [True])
    assert second.run.folder == tmp_path
    assert second.run.settings["optimizer.lr"] == TrainConfig().optimizer.lr
    steps = {metric["step"] for metric in second.metrics}
    assert steps == {3, 4, 5}


def test_a_logger_that_fails_is_dropped(
    notes: type[Notes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(self: Notes, metric: Metric) -> None:
        raise ConnectionError("no answer\nfrom the server")

    monkeypatch.setattr(notes, "write", fail)
    with caplog.at_level(logging.WARNING):
        state = fit_noise(tmp_path, steps=3, loggers=("notes",))
    assert state.step == 3
    line = "logger notes: ConnectionError: no answer from the server; the run goes on without it"
    assert [record.getMessage() for record in caplog.records] == [line]
    assert notes.runs[0].ends == []


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "mlflow"])
def test_without_the_package_nothing_is_written(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtra, match=rf"loggers={name} .* 'vitlab\[{name}\]'"):
        train(data="sample", out=tmp_path / "run", changes=CHANGES | {"loggers": name})
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_logger_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="did you mean wandb"):
        train(data="sample", out=tmp_path / "run", changes=CHANGES | {"loggers": "wandbb"})
    assert list(tmp_path.iterdir()) == []


def test_the_short_form_and_the_name_are_one_logger() -> None:
    config = TrainConfig(tensorboard=True, loggers=("mlflow", "tensorboard"))
    assert config.all_loggers == ("tensorboard", "mlflow")
