"""Runs that end early: because they diverge, or because they learn no more."""

from pathlib import Path

import pytest
import torch

from tiny_runs import CONFIG, fit_noise, metrics_of, random_batch, same_weights
from vitlab.errors import Diverged
from vitlab.models.variants import create_model
from vitlab.training.checkpoint import read_checkpoint
from vitlab.training.config import ScheduleConfig
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
    assert "try a lower learning rate (--set optimizer.lr=…)" in message
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
    # Evaluated every second step; the best is step 4, and three more evaluations are waited for,
    # from where the cosine has fallen to half: 10 % of warm-up, and half of the rest.
    assert (whole.step, whole.best_step, whole.since_best) == (16, 4, 3)
    kept = sorted(path.name for path in (tmp_path / "whole" / "checkpoints").iterdir())
    assert kept == ["best.safetensors", "step-00000012.safetensors", "step-00000016.safetensors"]

    for plug in (3, 11, 15):
        with pytest.raises(KeyboardInterrupt):
            fit_noise(tmp_path / "part", plug=plug, **options)
    for _ in range(2):  # the second time it has ended: no batch is asked for
        part = fit_noise(tmp_path / "part", **options)
        assert (part.step, part.best_step, part.since_best) == (16, 4, 3)
        assert same_weights(part.model, whole.model)
        assert metrics_of(tmp_path / "part") == metrics_of(tmp_path / "whole")
        options["plug"] = 16


@pytest.mark.parametrize(
    ("schedule", "first"),
    [
        (ScheduleConfig(kind="cosine", warmup=0.2), 13),
        (ScheduleConfig(kind="linear", warmup=0.0), 11),
        (ScheduleConfig(kind="constant", cooldown=0.3), 15),
        (ScheduleConfig(kind="rsqrt", warmup=0.1, cooldown=0.0), 3),
    ],
)
def test_patience_counts_from_where_the_learning_rate_is_low(
    tmp_path: Path, schedule: ScheduleConfig, first: int
) -> None:
    patience = int(torch.randint(1, 4, ()))
    options = {"evaluations": 20, "patience": patience, "best_at": 1, "checkpoint_every": 9}
    state = fit_noise(tmp_path, steps=20, schedule=schedule, **options)
    assert (state.step, state.best_step) == (first + patience - 1, 1)


def test_without_patience_a_run_goes_on(tmp_path: Path) -> None:
    state = fit_noise(tmp_path / "run", steps=12, evaluations=6, best_at=2)
    assert (state.step, state.since_best) == (12, 3)  # of five, those after step 6.6
    assert torch.isfinite(next(state.model.parameters())).all()


def test_of_weights_that_differ_by_chance_the_latest_are_kept(tmp_path: Path) -> None:
    values = [0.5, 0.80, 0.79, 0.75, 0.77, 0.70]
    options = {"steps": 6, "evaluations": 6}
    state = fit_noise(tmp_path / "few", values=values, noise=0.04, **options)
    assert (state.best_step, state.best, state.highest, state.since_best) == (5, 0.77, 0.80, 1)
    state = fit_noise(tmp_path / "many", values=values, noise=0.015, **options)
    assert (state.best_step, state.best, state.since_best) == (3, 0.79, 3)
    state = fit_noise(tmp_path / "exact", values=values, noise=0.0, **options)
    assert (state.best_step, state.best, state.since_best) == (2, 0.80, 3)


def test_a_clearly_higher_loss_is_no_tie(tmp_path: Path) -> None:
    values = [0.5, 0.80, 0.79, 0.81, 0.77, 0.70]
    losses = [0.1, 0.40, 0.30, 0.30, 0.38, 0.01]
    options = {"steps": 6, "evaluations": 6, "values": values, "losses": losses}
    state = fit_noise(tmp_path / "tie", noise=0.05, **options)
    assert (state.best_step, state.best, state.best_loss, state.since_best) == (4, 0.81, 0.30, 1)
    # An accuracy that is clearly better makes the loss of earlier weights irrelevant.
    state = fit_noise(tmp_path / "clear", noise=0.005, **options)
    assert (state.best_step, state.best_loss) == (4, 0.30)
    resumed = fit_noise(tmp_path / "tie", noise=0.05, **options)
    assert (resumed.best_step, resumed.best_loss) == (4, 0.30)


@pytest.mark.parametrize(
    ("values", "losses", "best_step"),
    [
        ([0.80, 0.80, 0.80], [0.30, 0.31, 0.32], 1),  # equal: the lower loss
        ([0.80, 0.80, 0.80], [0.30, 0.30, 0.29], 3),
        ([0.80, 0.78, 0.79], [0.30, 0.33, 0.36], 3),  # up to noise: the latest
        ([0.80, 0.78, 0.79], [0.30, 0.36, 0.39], 2),  # but losses do not drift upwards
    ],
)
def test_ties(tmp_path: Path, values: list[float], losses: list[float], best_step: int) -> None:
    options = {"evaluations": 3, "values": values, "losses": losses, "noise": 0.05}
    state = fit_noise(tmp_path, steps=3, **options)
    assert (state.best_step, state.best_loss) == (best_step, losses[best_step - 1])
    resumed = fit_noise(tmp_path, steps=3, **options)
    assert (resumed.best_step, resumed.lowest_loss) == (best_step, min(losses[:best_step]))


@pytest.mark.parametrize(("loss", "best_step"), [(0.03, 0), (0.3, 2)])
def test_step_0_is_evaluated_and_may_be_the_best(
    tmp_path: Path, loss: float, best_step: int
) -> None:
    changes = {"values": [0.93, 0.94, 0.95], "losses": [0.4, 0.2, loss]}
    options = {"steps": 2, "evaluations": 2, "noise": 0.02, "first": True, **changes}
    state = fit_noise(tmp_path, **options)
    assert (state.chosen, state.best_step, state.highest) == (True, best_step, 0.95)
    assert [m["value"] for m in metrics_of(tmp_path) if m["name"] == "accuracy"] == [
        0.95,
        0.93,
        0.94,
    ]
    assert read_checkpoint(tmp_path / "checkpoints/best.safetensors").numbers["step"] == best_step
    again = fit_noise(tmp_path, **options)  # resumed: step 0 is not evaluated again
    assert metrics_of(tmp_path)[0]["step"] == 0
    assert len([m for m in metrics_of(tmp_path) if m["step"] == 0]) == 2
    assert again.best_step == best_step
