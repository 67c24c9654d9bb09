"""The learning rate of every step, as literal lists."""

import math

import pytest

from vitlab.errors import ConfigError
from vitlab.training.config import ScheduleConfig
from vitlab.training.optim import factor


def whole(steps: int, **settings: object) -> list[float]:
    config = ScheduleConfig(**settings)
    return [round(factor(config, step, steps), 6) for step in range(steps)]


def test_linear() -> None:
    assert whole(5, kind="linear", warmup=0.2) == [0.5, 1.0, 0.75, 0.5, 0.25]


def test_cosine() -> None:
    expected = [0.5, 1.0, 0.853553, 0.5, 0.146447]
    assert whole(5, kind="cosine", warmup=0.2, cooldown=0.0) == expected


def test_constant_then_cooldown() -> None:
    assert whole(6, kind="constant", warmup=0.0, cooldown=0.5) == [1, 1, 1, 0.75, 0.5, 0.25]


def test_reciprocal_square_root() -> None:
    found = whole(8, kind="rsqrt", warmup=0.25, cooldown=0.25)
    root = [math.sqrt(3 / (step + 1)) for step in range(8)]
    expected = [1 / 3, 2 / 3, *root[2:6], root[6] * 2 / 3, root[7] / 3]
    assert found == [round(value, 6) for value in expected]


@pytest.mark.parametrize("kind", ["cosine", "linear", "constant", "rsqrt"])
def test_every_update_moves_and_none_exceeds_the_peak(kind: str) -> None:
    rates = whole(97, kind=kind, warmup=0.1, cooldown=0.2)
    assert all(0 < rate <= 1 for rate in rates)
    assert rates[-1] < 0.05


def test_shares_of_one_run() -> None:
    with pytest.raises(ConfigError, match=r"warmup 0\.7 and cooldown 0\.5"):
        ScheduleConfig(warmup=0.7, cooldown=0.5)
