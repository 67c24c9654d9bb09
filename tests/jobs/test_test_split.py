"""The test split is closed until a run is over: every file that Python opens is audited."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data.colours import saved_model, write_colours
from runs import train_until
from vitlab.data.datasets import StoredFile
from vitlab.data.duplicates import TRIED, check_readable
from vitlab.data.sources import folder as folder_module
from vitlab.data.sources.cifar import CIFAR10, CIFAR10_FILES
from vitlab.errors import ConfigError
from vitlab.jobs import run_result, training_run
from vitlab.jobs import train as train_module
from vitlab.jobs.evaluate import evaluate
from vitlab.jobs.finetune import finetune
from vitlab.jobs.train import train
from vitlab.jobs.training_run import TrainingRun, open_images
from vitlab.registry import DATASETS

SMALL: dict[str, Any] = {
    "model": "vit_test",
    "batch_size": 8,
    "budget": 3.0,
    "budget_in": "steps",
    "evaluations": 2,
    "checkpoint_every": 1,
    "hold_out": 0.2,
    "ema": 0.5,
}
EACH = 20
"""Images in each of CIFAR's files: two of every class."""


@dataclass
class Audit:
    """Which files were opened before a run's final evaluation began, and which after that."""

    before: list[str] = field(default_factory=list)
    after: list[str] = field(default_factory=list)
    over: bool = False

    def early(self, place: Path) -> set[str]:
        """Files below a place, or the place itself, that were opened too soon."""
        return {path for path in self.before if Path(path).is_relative_to(place)}

    def late(self, place: Path) -> set[str]:
        """The same, opened in time."""
        return {path for path in self.after if Path(path).is_relative_to(place)}


listening: list[Audit] = []


def hear(event: str, arguments: tuple[Any, ...]) -> None:
    """Python calls it for every file that is opened, also by NumPy and Pillow."""
    if event == "open" and listening and isinstance(arguments[0], str | bytes | os.PathLike):
        heard = listening[-1]
        path = os.path.realpath(os.fsdecode(arguments[0]))
        (heard.after if heard.over else heard.before).append(path)


sys.addaudithook(hear)  # for good: Python has no way to take one off


@pytest.fixture
def audit(monkeypatch: pytest.MonkeyPatch) -> Iterator[Audit]:
    """Everything that is opened; `finish` is where a run may look at the test images."""
    heard, finish = Audit(), run_result.finish

    def finishing(run: TrainingRun) -> Any:
        heard.over = True
        return finish(run)

    monkeypatch.setattr(train_module, "finish", finishing)
    with hearing(heard):
        yield heard


@contextmanager
def hearing(heard: Audit) -> Iterator[Audit]:
    listening.append(heard)
    try:
        yield heard
    finally:
        listening.pop()


@pytest.fixture
def cifar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with a small CIFAR-10 in the official format; the path of its test file."""
    home = tmp_path / "home" / "cifar-10-batches-bin"
    home.mkdir(parents=True)
    random = np.random.default_rng(0)
    for file in CIFAR10_FILES:
        records = random.integers(256, size=(EACH, 1 + 3 * 32 * 32), dtype=np.uint8)
        records[:, 0] = np.arange(EACH) % 10
        (home / file.name).write_bytes(records.tobytes())
    files = tuple(
        StoredFile(name=file.name, size=EACH * 3073, checksum=None) for file in CIFAR10_FILES
    )
    monkeypatch.setitem(DATASETS._entries, "cifar10", replace(CIFAR10, files=files))
    monkeypatch.setenv("VITLAB_DATA", str(tmp_path / "home"))
    return (home / CIFAR10_FILES[-1].name).resolve()


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A folder with `train` and `test`."""
    return write_colours(tmp_path / "photos", {"train": 10, "test": 4}).resolve()


@pytest.fixture
def unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody asks before the first step whether the test files can be read at all."""
    monkeypatch.setattr(folder_module, "check_readable", lambda where, paths: None)


def test_cifar(cifar: Path, audit: Audit, tmp_path: Path) -> None:
    run = train(data="cifar10", out=tmp_path / "run", changes=SMALL)
    assert run.split == "test"
    assert len(audit.early(cifar.parent)) == 5
    assert audit.early(cifar) == set()
    assert audit.late(cifar) == {str(cifar)}


def test_a_trial_is_judged_on_held_out_images(cifar: Path, audit: Audit, tmp_path: Path) -> None:
    run = train(data="cifar10", out=tmp_path / "run", changes=SMALL | {"judged_on": "held-out"})
    assert run.split == "validation"
    assert run.metrics["validation_images"] == 0.2 * 5 * EACH
    assert audit.over
    assert audit.early(cifar) == audit.late(cifar) == set()
    assert "A trial: the test images were not opened." in run.report.read_text()


def test_a_trial_needs_held_out_images(cifar: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="judged_on held-out needs hold_out > 0"):
        train(
            data="cifar10",
            out=tmp_path / "run",
            changes=SMALL | {"judged_on": "held-out", "hold_out": 0.0},
        )


def test_cifar_broken_off_and_resumed(cifar: Path, audit: Audit, tmp_path: Path) -> None:
    train_until(2, data="cifar10", out=tmp_path / "run", changes=SMALL)
    assert not audit.over
    train(out=tmp_path / "run", resume=True)
    assert audit.early(cifar) == set()
    assert audit.late(cifar) == {str(cifar)}


@pytest.mark.usefixtures("unasked")
def test_a_folder(photos: Path, audit: Audit, tmp_path: Path) -> None:
    run = train(data=photos, out=tmp_path / "run", changes=SMALL)
    assert run.split == "test"
    assert len(audit.early(photos / "train")) == 30
    assert audit.early(photos / "test") == set()
    assert len(audit.late(photos / "test")) == 12


@pytest.mark.usefixtures("unasked")
def test_fine_tuning_on_a_folder(photos: Path, audit: Audit, tmp_path: Path) -> None:
    weights = saved_model(tmp_path / "small.safetensors")
    changes = {key: value for key, value in SMALL.items() if key != "model"}
    finetune(weights, data=photos, out=tmp_path / "run", changes=changes)
    assert audit.early(photos / "test") == set()
    assert len(audit.late(photos / "test")) == 12


def test_whether_a_folder_can_be_read_is_asked_of_few_files_and_nothing_else(
    photos: Path, audit: Audit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside: set[int] = set()

    def asking(where: object, paths: Any) -> None:
        """It refuses the run or tells nothing; which files it opened is noted."""
        before = len(audit.before)
        check_readable(where, paths)
        inside.update(range(before, len(audit.before)))

    monkeypatch.setattr(folder_module, "check_readable", asking)
    train(data=photos, out=tmp_path / "run", changes=SMALL)
    assert 0 < len(audit.early(photos / "test")) <= TRIED < 12
    others = Audit(before=[path for i, path in enumerate(audit.before) if i not in inside])
    assert others.early(photos / "train") != set() == others.early(photos / "test")


def test_a_look_that_comes_too_soon_is_noticed(
    cifar: Path, audit: Audit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def curious(source: Any, *rest: Any) -> Any:
        source.open_test()
        return open_images(source, *rest)

    monkeypatch.setattr(training_run, "open_images", curious)
    train(data="cifar10", out=tmp_path / "run", changes=SMALL | {"budget": 1.0})
    assert audit.early(cifar) == {str(cifar)}


def test_evaluating_opens_it(cifar: Path, audit: Audit, tmp_path: Path) -> None:
    run = train(data="cifar10", out=tmp_path / "run", changes=SMALL | {"budget": 1.0})
    for split, opened in (("validation", set()), ("test", {str(cifar)})):
        with hearing(Audit()) as heard:
            evaluate(run.bundle, "cifar10", split=split)
        assert heard.early(cifar) == opened
