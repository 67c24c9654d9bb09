"""Batches that do not fit: what is proposed, what `auto` chooses, and what is written."""

import json
import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tiny_runs import CHANGES, CONFIG, random_batch
from vitlab.data.augment.config import AugmentConfig
from vitlab.data.loader import Batch
from vitlab.errors import OutOfMemory
from vitlab.jobs import train as job
from vitlab.jobs.train import train
from vitlab.jobs.training_run import Watcher
from vitlab.models.cost import PeakMemory
from vitlab.models.variants import create_model
from vitlab.training import batch_size, loop
from vitlab.training.batch_size import check_memory, fitting_batch_size
from vitlab.training.config import TrainConfig
from vitlab.training.state import new_state
from vitlab.training.step import StepStats, train_step

MEBI = 2**20


def short_of_memory(
    limit: int, error: BaseException, calls: list[int] | None = None
) -> Callable[..., StepStats]:
    """`train_step` on a device that has room for parts of `limit` images."""

    def step(state: Any, batch: Batch, config: TrainConfig, **rest: Any) -> StepStats:
        if calls is not None:
            calls.append(len(batch.images))
        if len(batch.images) > limit * config.accumulate:
            raise error
        return train_step(state, batch, config, **rest)

    return step


def free(count: int) -> Callable[[], int]:
    return lambda: count


def test_an_accelerator_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []
    full = torch.OutOfMemoryError("CUDA out of memory")
    monkeypatch.setattr(batch_size, "train_step", short_of_memory(10, full, tried))
    monkeypatch.setattr(batch_size, "_device", lambda model: torch.device("cuda"))
    monkeypatch.setattr(batch_size, "_grey", lambda model, size: on_cpu(size))
    monkeypatch.setattr(torch.accelerator, "empty_cache", lambda: None)
    model = create_model("vit_test")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert fitting_batch_size(model, TrainConfig(), largest=48) == 8
    assert tried == [48, 32, 16, 8, 8]
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


def on_cpu(size: int) -> Batch:
    zeros = torch.zeros(size, 3, 32, 32), torch.zeros(size, dtype=torch.long)
    return Batch(*zeros, torch.arange(size))


def test_another_error_is_not_taken_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = RuntimeError("shapes cannot be multiplied")
    monkeypatch.setattr(batch_size, "train_step", short_of_memory(10, wrong))
    monkeypatch.setattr(batch_size, "_device", lambda model: torch.device("cuda"))
    monkeypatch.setattr(batch_size, "_grey", lambda model, size: on_cpu(size))
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        fitting_batch_size(create_model("vit_test"), TrainConfig(), largest=48)


def test_a_cpu_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITLAB_RUNTIME", "plain")  # the meter sees its own thread alone
    model = create_model("vit_test", depth=8)
    config = TrainConfig(model="vit_test")
    cost = batch_size._cost_on_cpu(model, config)
    for size in (64, 128):
        state = new_state(create_model("vit_test", depth=8), config)
        train_step(state, random_batch(2), config, lr_factor=0.0)
        with PeakMemory() as memory:
            train_step(state, random_batch(size), config, lr_factor=0.0)
        # Two points of a line foretell the others; the optimizer's own memory comes on top.
        assert memory.peak < cost.of(size) < 1.15 * memory.peak + cost.fixed
    monkeypatch.setattr(batch_size, "free_bytes", free(int(cost.of(40) / batch_size.SHARE)))
    assert fitting_batch_size(model, config, largest=256) == 32
    assert fitting_batch_size(model, config, largest=39) == 39
    in_parts = TrainConfig(accumulate=4, batch_size=256)
    assert fitting_batch_size(model, in_parts, largest=256) == 128
    monkeypatch.setattr(batch_size, "free_bytes", free(1))
    assert fitting_batch_size(model, config, largest=256) is None


def test_sizes_split_as_the_config_asks() -> None:
    config = TrainConfig(batch_size=96, accumulate=2, augment=AugmentConfig(repeats=3))
    assert batch_size._candidates(config, 96) == [96, 48, 24, 12, 6]
    assert batch_size._candidates(TrainConfig(), 100) == [100, 64, 32, 16, 8, 4, 2, 1]


def test_what_cannot_fit_is_refused_before_it_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    model = create_model("vit_test")
    check_memory(model, replace(CONFIG, batch_size=4096))
    monkeypatch.setattr(batch_size, "free_bytes", free(64 * MEBI))
    with pytest.raises(OutOfMemory, match=r"batches of 4096 images; (\d+) would fit") as caught:
        check_memory(model, replace(CONFIG, batch_size=4096))
    proposed = int(str(caught.value).split("--batch-size ")[1].split(",")[0])
    check_memory(model, replace(CONFIG, batch_size=proposed))
    check_memory(model, replace(CONFIG, batch_size=4096, accumulate=4096 // proposed))
    monkeypatch.setattr(batch_size, "free_bytes", lambda: None)
    check_memory(model, replace(CONFIG, batch_size=4096))


def test_the_first_step_proposes_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = RuntimeError("DefaultCPUAllocator: can't allocate memory")
    monkeypatch.setattr(loop, "train_step", short_of_memory(8, error))
    with pytest.raises(OutOfMemory, match="not enough memory for batches of 32") as caught:
        train(data="sample", out=tmp_path / "run", changes=CHANGES)
    assert "16 would fit: pass --batch-size 16, or --batch-size auto" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_later_step_leaves_the_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def step(state: Any, batch: Batch, config: TrainConfig, **rest: Any) -> StepStats:
        if state.step == 3:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return train_step(state, batch, config, **rest)

    monkeypatch.setattr(loop, "train_step", step)
    with pytest.raises(
        OutOfMemory, match=r"step 3 was the last to have it.*continue with --resume"
    ):
        train(data="sample", out=tmp_path / "run", changes=CHANGES)
    assert (tmp_path / "run" / "checkpoints" / "step-00000002.safetensors").is_file()
    assert (tmp_path / "run" / "config.json").is_file()


class Begun(Exception):
    """Everything was decided and stored."""


@pytest.fixture
def begin_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs end where the first step would begin."""

    def fit(*_: object, **__: object) -> None:
        raise Begun

    monkeypatch.setattr(job, "fit", fit)


def test_auto_is_decided_once_and_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begin_only: None
) -> None:
    notes: list[str] = []
    watcher, out = Watcher(note=notes.append), tmp_path / "run"
    config = TrainConfig(**{**CHANGES, "batch_size": 64})
    cost = batch_size._cost_on_cpu(create_model("vit_test"), config)
    monkeypatch.setattr(batch_size, "free_bytes", free(int(cost.of(20) / batch_size.SHARE)))
    with pytest.raises(Begun):
        train(config, data="sample", out=out, changes={"batch_size": "auto"}, watcher=watcher)
    stored = json.loads((out / "config.json").read_text())
    assert stored["train"]["batch_size"] == 16
    assert stored["train"]["optimizer"]["lr"] == config.optimizer.lr
    assert "batch_size=16" in shlex.split(stored["command"])
    decided = "batch size 16, the largest up to 64 that fits; the learning rates stay the recipe's"
    assert [note for note in notes if note.startswith("batch size")] == [decided]
    monkeypatch.setattr(batch_size, "free_bytes", free(2**40))
    with pytest.raises(Begun):
        train(out=out, resume=True, watcher=watcher)
    assert json.loads((out / "config.json").read_text()) == stored
    assert [note for note in notes if note.startswith("batch size")] == [decided]


def test_auto_keeps_the_recipes_number_where_it_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begin_only: None
) -> None:
    monkeypatch.setattr(batch_size, "free_bytes", free(2**40))
    config, out = TrainConfig(**{**CHANGES, "batch_size": 48}), tmp_path / "run"
    with pytest.raises(Begun):
        train(config, data="sample", out=out, changes={"batch_size": "auto"})
    assert json.loads((out / "config.json").read_text())["train"]["batch_size"] == 48


def test_not_even_one_image_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_size, "free_bytes", free(1))
    with pytest.raises(OutOfMemory, match="choose a smaller model"):
        train(data="sample", out=tmp_path / "run", changes=CHANGES | {"batch_size": "auto"})
    assert list(tmp_path.iterdir()) == []
