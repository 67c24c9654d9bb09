"""Smaller images in the first stages of a run."""

from pathlib import Path
from typing import Any

import pytest
import torch

from runs import same, train_until
from vitlab.errors import ConfigError
from vitlab.jobs.train import train
from vitlab.models.cost import count_flops
from vitlab.models.variants import create_model
from vitlab.training.config import TrainConfig
from vitlab.training.progressive_resize import (
    check_small_sizes,
    scaled,
    share_of_time,
    shrink,
    size_at,
    stages,
)

STAGES = TrainConfig(small_sizes=(16, 24), small_until=(0.3, 0.6))
CHANGES: dict[str, Any] = {
    "model": "vit_test",
    "changes": {"dynamic_size": True},
    "batch_size": 16,
    "budget": 10.0,
    "budget_in": "steps",
    "evaluations": 1,
    "checkpoint_every": 4,
    "optimizer.name": "adamw",
    "small_sizes": (16, 24),
    "small_until": (0.3, 0.6),
}


def test_stages_follow_each_other() -> None:
    assert [size_at(STAGES, step, 10) for step in range(10)] == [16] * 3 + [24] * 3 + [None] * 4
    assert size_at(TrainConfig(), 0, 10) is None
    assert stages(TrainConfig()) == [(None, 1.0)]
    sizes, shares = zip(*stages(STAGES), strict=True)
    assert sizes == (16, 24, None)
    assert shares == pytest.approx((0.3, 0.3, 0.4))


def test_small_images_take_less_time_but_not_as_much_less() -> None:
    first, second = 0.15 + 0.85 * 0.25, 0.15 + 0.85 * 0.5625
    assert share_of_time(STAGES, 32) == pytest.approx(0.3 * first + 0.3 * second + 0.4)
    assert share_of_time(STAGES, 32, done=0.45) == pytest.approx(0.3 * first + 0.15 * second)
    assert share_of_time(STAGES, 32, done=0.1) == pytest.approx(0.1 * first)
    assert share_of_time(TrainConfig(), 32) == 1.0
    assert share_of_time(TrainConfig(), 32, done=0.3) == 0.3


def test_images_shrink_without_aliasing() -> None:
    stripes = torch.zeros(2, 3, 8, 12)
    stripes[..., ::2] = 1.0  # too fine for half of the columns
    small = shrink(stripes, 4)
    assert small.shape == (2, 3, 4, 6)
    torch.testing.assert_close(small[..., 1:-1], torch.full((2, 3, 4, 4), 0.5))
    assert shrink(stripes, None) is stripes
    assert scaled((20, 30), 7) == (7, 10)


@pytest.mark.parametrize(
    ("sizes", "until", "line"),
    [
        ((16,), (), "small_until () is not one growing share"),
        ((16, 24), (0.6, 0.3), "small_until (0.6, 0.3) is not one growing share"),
        ((16,), (1.0,), "small_until (1.0,) is not one growing share"),
        ((0,), (0.5,), "small_sizes (0,) has an entry below 1"),
    ],
)
def test_stages_are_checked(sizes: tuple[int, ...], until: tuple[float, ...], line: str) -> None:
    with pytest.raises(ConfigError) as error:
        TrainConfig(small_sizes=sizes, small_until=until)
    assert line in str(error.value)


@pytest.mark.parametrize(
    ("name", "changes", "size", "line"),
    [
        ("vit_test", {}, 16, "small_sizes needs a model that takes them: model.dynamic_size=true"),
        ("vit_test", {"dynamic_size": True}, 32, "small_sizes 32 is not below the model's 32"),
        ("vit_test", {"dynamic_size": True}, 12, "is not a multiple of patch_size 8"),
        (
            "cnn_tutorial",
            {},
            16,
            "small_sizes is for Vision Transformers, not for cnn_tutorial",
        ),
    ],
)
def test_models_that_cannot_are_refused(
    name: str, changes: dict[str, Any], size: int, line: str, tmp_path: Path
) -> None:
    config = TrainConfig(model=name, small_sizes=(size,), small_until=(0.5,))
    with pytest.raises(ConfigError) as error:
        check_small_sizes(create_model(name, **changes), config)
    assert line in str(error.value)
    wanted = {"model": name, "changes": changes, "small_sizes": (size,), "small_until": (0.5,)}
    with pytest.raises(ConfigError):
        train(data="sample", out=tmp_path / "run", changes=wanted)
    assert not (tmp_path / "run").exists()


def test_a_run_resumes_to_the_same_and_tells_what_it_spent(tmp_path: Path) -> None:
    run = train(data="sample", out=tmp_path / "whole", changes=CHANGES)
    part = tmp_path / "part"
    train_until(5, data="sample", out=part, changes=CHANGES)
    train(out=part, resume=True)
    assert same(part, run.folder)
    model = create_model("vit_test", dynamic_size=True)
    steps = {16: 3, 24: 3, 32: 4}
    expected = sum(count * 16 * 3 * count_flops(model, size, 3) for size, count in steps.items())
    assert run.compute.flops == expected
