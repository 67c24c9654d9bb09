"""TensorBoard's files say what `metrics.jsonl` says, and nothing twice."""

import sys
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tiny_runs import CHANGES, fit_noise, metrics_of
from vitlab.errors import MissingExtra
from vitlab.jobs.train import train


def events_of(run: Path) -> list[tuple[str, int, float]]:
    """What TensorBoard would show: tag, step and value."""
    reader = EventAccumulator(str(run / "tensorboard"))
    reader.Reload()
    tags = reader.Tags()["scalars"]
    return sorted((tag, e.step, e.value) for tag in tags for e in reader.Scalars(tag))


def logged(run: Path) -> list[tuple[str, int, Any]]:
    lines = sorted((f"{m['split']}/{m['name']}", m["step"], m["value"]) for m in metrics_of(run))
    # TensorBoard stores float32.
    return [(tag, step, pytest.approx(value, rel=1e-6)) for tag, step, value in lines]


def test_a_run_that_was_killed_and_resumed_shows_every_step_once(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        fit_noise(tmp_path, steps=7, plug=5, tensorboard=True, checkpoint_every=3)
    assert max(step for _, step, _ in events_of(tmp_path)) == 5  # two beyond the checkpoint
    fit_noise(tmp_path, steps=7, tensorboard=True, checkpoint_every=3)
    assert {step for _, step, _ in events_of(tmp_path)} == {1, 2, 3, 4, 5, 6, 7}
    assert events_of(tmp_path) == logged(tmp_path)
    assert len(list((tmp_path / "tensorboard").iterdir())) == 2


def test_nobody_asked(tmp_path: Path) -> None:
    fit_noise(tmp_path, steps=1)
    assert not (tmp_path / "tensorboard").exists()


def test_without_the_package_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(MissingExtra, match=r"pip install 'vitlab\[tensorboard\]'"):
        train(data="sample", out=tmp_path / "run", changes=CHANGES | {"tensorboard": True})
    assert list(tmp_path.iterdir()) == []
