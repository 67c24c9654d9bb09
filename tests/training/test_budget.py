"""How many steps fit into minutes, on a clock that only work moves."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn

from tiny_runs import Noise
from vitlab.training import budget
from vitlab.training.budget import steps_for
from vitlab.training.config import TrainConfig
from vitlab.training.state import new_state


@dataclass
class Machine:
    """Takes `slow` seconds for each of the first two updates, then `fast` seconds."""

    slow: float
    fast: float
    fixed: float = 0.0
    """Part of an update that small images take too, added to that of their pixels."""
    now: float = 0.0
    updates: int = 0

    def monotonic(self) -> float:
        return self.now

    def train_step(self, state: Any, batch: Any, config: Any, **options: Any) -> None:
        assert options["lr_factor"] == 0.0
        pixels = batch.images[0, 0].numel() / 32**2
        self.now += (self.slow if self.updates < 2 else self.fast) * (self.fixed + pixels)
        self.updates += 1


def steps_on(
    machine: Machine,
    monkeypatch: pytest.MonkeyPatch,
    *,
    tested: int = 0,
    other: float = 0.0,
    first: bool = False,
    **settings: Any,
) -> int:
    monkeypatch.setattr(budget, "time", machine)
    monkeypatch.setattr(budget, "train_step", machine.train_step)
    config = TrainConfig(batch_size=8, evaluations=10, **settings)
    state = new_state(nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 10)), config)
    before = torch.clone(next(state.model.parameters()))
    loader = Noise(8, poison=None, plug=None)
    counted = {"tested": tested, "other": other, "first": first}
    steps = steps_for(config, state, loader, evaluated=40, **counted)
    assert torch.equal(before, next(state.model.parameters()))
    return steps


def minutes(count: float) -> dict[str, Any]:
    return {"budget": count, "budget_in": "minutes"}


def test_starting_up_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(slow=9.0, fast=0.5)
    # 3 % and ten seconds are put aside, and twelve looks at 40 images that take 0.35 of a step's 8.
    expected = int((600 * 0.97 - 10 - 12 * 40 * 0.35 * 0.5 / 8) / 0.5)
    assert steps_on(machine, monkeypatch, **minutes(10)) == expected
    assert machine.updates == 2 + 21


@pytest.mark.parametrize(("fast", "measured"), [(4.0, 5), (30.0, 2), (100.0, 1), (1e-4, 200)])
def test_a_trial_is_short_on_every_machine(
    monkeypatch: pytest.MonkeyPatch, fast: float, measured: int
) -> None:
    machine = Machine(slow=fast, fast=fast)
    assert steps_on(machine, monkeypatch, **minutes(60)) >= 1
    assert machine.updates == 2 + measured


def test_the_minutes_are_those_of_the_whole_run(monkeypatch: pytest.MonkeyPatch) -> None:
    tested, other = int(torch.randint(1, 5000, ())), float(torch.randint(1, 99, ()))
    machine, evaluation = Machine(slow=0.5, fast=0.5), 0.35 * 0.5 / 8
    # 10 evaluations, one more for the temperature, and two that compare averaged weights.
    left = 600 * 0.97 - 10 - other - (13 * 40 + tested) * evaluation
    found = steps_on(machine, monkeypatch, tested=tested, other=other, ema=0.9, **minutes(10))
    assert found == int(left / 0.5)


def test_weights_before_step_1_are_evaluated_too(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(slow=0.5, fast=0.5)
    expected = int((600 * 0.97 - 10 - 13 * 40 * 0.35 * 0.5 / 8) / 0.5)
    assert steps_on(machine, monkeypatch, first=True, **minutes(10)) == expected
    assert expected < steps_on(Machine(slow=0.5, fast=0.5), monkeypatch, **minutes(10))


def test_a_head_that_learns_alone_is_quicker(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(slow=1.0, fast=1.0)
    time_left = 600 * 0.97 - 10 - 12 * 40 * 0.35 / 8
    expected = int(time_left / (1 - 0.2 * 0.65))
    assert steps_on(machine, monkeypatch, head_first=0.2, **minutes(10)) == expected


def test_every_size_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(slow=0.1, fast=0.1, fixed=0.5)
    small = {"small_sizes": (16, 24), "small_until": (0.3, 0.6)}
    mean = 0.1 * (0.3 * 0.75 + 0.3 * 1.0625 + 0.4 * 1.5)
    expected = int((600 * 0.97 - 10 - 12 * 40 * 0.35 * 0.15 / 8) / mean)
    assert steps_on(machine, monkeypatch, **small, **minutes(10)) == expected
    assert 10 < machine.now < 13  # as long as with one size


def test_steps_and_epochs_need_no_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(slow=1.0, fast=1.0)
    assert steps_on(machine, monkeypatch, budget=7.0, budget_in="steps") == 7
    assert steps_on(machine, monkeypatch, budget=1.5, budget_in="epochs") == 15
    assert machine.updates == 0
