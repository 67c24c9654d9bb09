"""The learning-rate range test."""

from pathlib import Path

import pytest
import torch

from vitlab.data.loader import Batch
from vitlab.errors import ConfigError
from vitlab.models.variants import create_model
from vitlab.training.config import OptimizerConfig, TrainConfig
from vitlab.training.find_lr import HIGHEST, LOWEST, Trial, find_lr, suggested_lr
from vitlab.training.loss import squared_error


class Repeating:
    """One batch, again and again."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.broken: dict[Path, str] = {}
        images = torch.randn(11, 3, 32, 32, generator=generator)
        self._batch = Batch(images, torch.arange(11) % 10, torch.arange(11))

    steps_per_epoch = 1.0

    def batch(self, step: int) -> Batch:
        return self._batch

    def close(self) -> None:
        pass


@pytest.mark.parametrize("optimizer", ["adamw", "muon", "sgd"])
def test_the_loss_falls_and_then_the_test_ends(optimizer: str) -> None:
    torch.manual_seed(0)
    model = create_model("vit_test")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    config = TrainConfig(model="vit_test", optimizer=OptimizerConfig(name=optimizer))
    trials = find_lr(model, config, Repeating(), steps=60)
    rates = [trial.lr for trial in trials]
    assert rates[0] == LOWEST
    assert rates == sorted(rates)
    assert rates[-1] <= HIGHEST
    lowest = min(trials, key=lambda trial: trial.loss)
    assert lowest.loss < 0.8 * trials[0].loss
    assert LOWEST < suggested_lr(trials) < lowest.lr
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_the_loss_is_that_of_the_run() -> None:
    torch.manual_seed(0)
    model = create_model("vit_test", classes=1)
    loader = Repeating()
    values = torch.linspace(-1, 1, 11)[:, None]
    loader._batch = loader._batch._replace(targets=values)
    loss = squared_error(torch.zeros(1), torch.ones(1))
    trials = find_lr(model, TrainConfig(model="vit_test"), loader, steps=60, loss_of=loss)
    assert min(trial.loss for trial in trials) < 0.8 * trials[0].loss
    assert suggested_lr(trials) > 10 * LOWEST


def test_what_is_suggested() -> None:
    trials = [Trial(lr=r, loss=x) for r, x in ((1e-4, 2.0), (1e-3, 1.0), (1e-2, 5.0))]
    assert suggested_lr(trials) == pytest.approx(3e-4)
    with pytest.raises(ConfigError, match="no learning rate gives a finite loss"):
        suggested_lr([])
