"""Runs that end early: because they diverge, or because they learn no more."""

from pathlib import Path

import pytest
import torch

from tiny_runs import CONFIG, fit_noise, metrics_of, random_batch, same_weights
from vitlab.errors import Diverged
from vitlab.models.build import create_model
from vitlab.training.state import new_state
from vitlab.training.step import train_step
from vitlab.weights.container import open_weights


def test_divergence_names_step_batch_and_remedy(tmp_path: Path) -> None:
    with pytest.raises(Diverged) as caught:
        fit_noise(tmp_path / "run", steps=6, poison=3)
    message = str(caught.value)
    assert "diverged at step 4: loss nan, gradient norm nan" in message
    assert "in a batch of 8 training images (numbers 100, 101, 102, 103, 104, 105, 106, 107)" in (
        message
    )
    assert "try a lower rate (--set optimizer.lr=…)" in message
    assert "\n" not in message


def test_divergence_leaves_the_last_good_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(Diverged):
        fit_noise(tmp_path / "run", steps=6, poison=3)
    [checkpoint] = (tmp_path / "run" / "checkpoints").glob("step-*")
    assert checkpoint.name == "step-00000002.safetensors"
    file = open_weights(checkpoint)
    assert all(file.read(name).isfinite().all() for name in file.shapes)
    file.close()
    resumed = fit_noise(tmp_path / "run", steps=6)
    whole = fit_noise(tmp_path / "whole", steps=6)
    assert same_weights(resumed.model, whole.model)
    assert metrics_of(tmp_path / "run") == metrics_of(tmp_path / "whole")


def test_the_batch_that_diverged_changed_no_weight() -> None:
    state = new_state(create_model("vit_test"), CONFIG)
    before = new_state(create_model("vit_test"), CONFIG)
    before.model.load_state_dict(state.model.state_dict())
    batch = random_batch(11)
    with pytest.raises(Diverged, match=r"11 training images \(numbers 100, 101, .*107, …\)"):
        train_step(state, batch._replace(images=batch.images / 0.0), CONFIG, lr_factor=1.0)
    assert same_weights(state.model, before.model)


def test_patience_ends_a_run_that_learns_no_more(tmp_path: Path) -> None:
    options = {"steps": 20, "evaluations": 10, "patience": 3, "checkpoint_every": 4, "best_at": 4}
    whole = fit_noise(tmp_path / "whole", **options)
    # Evaluated every second step; the best is step 4, and three more evaluations are waited for.
    assert (whole.step, whole.best_step, whole.since_best) == (10, 4, 3)
    kept = sorted(path.name for path in (tmp_path / "whole" / "checkpoints").iterdir())
    assert kept == ["best.safetensors", "step-00000008.safetensors", "step-00000010.safetensors"]

    for plug in (3, 7, 9):
        with pytest.raises(KeyboardInterrupt):
            fit_noise(tmp_path / "part", plug=plug, **options)
    for _ in range(2):  # the second time it has ended: no batch is asked for
        part = fit_noise(tmp_path / "part", **options)
        assert (part.step, part.best_step, part.since_best) == (10, 4, 3)
        assert same_weights(part.model, whole.model)
        assert metrics_of(tmp_path / "part") == metrics_of(tmp_path / "whole")
        options["plug"] = 10


def test_without_patience_a_run_goes_on(tmp_path: Path) -> None:
    state = fit_noise(tmp_path / "run", steps=12, evaluations=6, best_at=2)
    assert (state.step, state.since_best) == (12, 5)
    assert torch.isfinite(next(state.model.parameters())).all()


def test_of_weights_that_differ_by_chance_the_latest_are_kept(tmp_path: Path) -> None:
    values = [0.5, 0.80, 0.79, 0.75, 0.77, 0.70]
    options = {"steps": 6, "evaluations": 6}
    state = fit_noise(tmp_path / "few", values=values, noise=0.04, **options)
    assert (state.best_step, state.best, state.highest, state.since_best) == (5, 0.77, 0.80, 1)
    state = fit_noise(tmp_path / "many", values=values, noise=0.015, **options)
    assert (state.best_step, state.best, state.since_best) == (3, 0.79, 3)
    state = fit_noise(tmp_path / "exact", values=values, noise=0.0, **options)
    assert (state.best_step, state.best, state.since_best) == (2, 0.80, 4)
