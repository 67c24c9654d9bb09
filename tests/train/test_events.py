"""TensorBoard's files say what `metrics.jsonl` says, and nothing twice."""

import sys
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from train.runs import SMALL, metrics_of
from vitlab.errors import MissingExtra
from vitlab.tasks.train import train
from vitlab.train import loop
from vitlab.train.step import train_step

CHANGES = SMALL | {"tensorboard": True, "budget": 7.0, "evaluations": 2, "checkpoint_every": 3}


def events_of(run: Path) -> list[tuple[str, int, float]]:
    """What TensorBoard would show: tag, step and value."""
    reader = EventAccumulator(str(run / "tensorboard"))
    reader.Reload()
    tags = reader.Tags()["scalars"]
    return sorted((tag, e.step, e.value) for tag in tags for e in reader.Scalars(tag))


def logged(run: Path) -> list[tuple[str, int, Any]]:
    return sorted(
        (f"{m['split']}/{m['name']}", m["step"], pytest.approx(m["value"], rel=1e-6))
        for m in metrics_of(run)
    )


def test_a_run_that_was_killed_and_resumed_shows_every_step_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def step(state: Any, *rest: Any, **options: Any) -> Any:
        if state.step == 5:
            raise KeyboardInterrupt
        return train_step(state, *rest, **options)

    run = tmp_path / "run"
    monkeypatch.setattr(loop, "train_step", step)
    with pytest.raises(KeyboardInterrupt):
        train(data="sample", out=run, changes=CHANGES)
    broken_off = {step for _, step, _ in events_of(run)}
    assert max(broken_off) > 3  # beyond the checkpoint: these steps will be made again
    monkeypatch.setattr(loop, "train_step", train_step)
    train(out=run, resume=True)
    assert events_of(run) == logged(run)
    assert len(list((run / "tensorboard").iterdir())) == 2


def test_nobody_asked(tmp_path: Path) -> None:
    run = train(data="sample", out=tmp_path / "run", changes=SMALL)
    assert not (run.folder / "tensorboard").exists()


def test_without_the_package_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(MissingExtra, match=r"pip install 'vitlab\[tensorboard\]'"):
        train(data="sample", out=tmp_path / "run", changes=CHANGES)
    assert list(tmp_path.iterdir()) == []
