"""The compute of a run: what torch counts for its passes, for the steps that were made, once."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from tiny_runs import CONFIG, fit_noise, random_batch
from vitlab.errors import ConfigError
from vitlab.models.summary import summary
from vitlab.models.variants import create_model
from vitlab.training import checkpoint
from vitlab.training.config import OptimizerConfig, ScheduleConfig
from vitlab.training.optim import build_optimizers
from vitlab.training.step import Meter
from vitlab.training.teacher import Teacher

STEPS, BATCH = 5, CONFIG.batch_size


@pytest.fixture(scope="module")
def forward() -> int:
    """FLOPs of one image through `vit_test`."""
    return counted(create_model("vit_test"), 32)


def counted(model: nn.Module, side: int) -> int:
    """FLOPs of one image, as torch counts them on real numbers; fused attention it does not see."""
    images = torch.zeros(1, 3, side, side)
    with FlopCounterMode(display=False) as counter, torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        model.eval()(images)
    return int(counter.get_total_flops())


def newton_schulz() -> int:
    """FLOPs of one update of `vit_test` by Muon: the only products that it makes."""
    model = create_model("vit_test")
    muon = build_optimizers(model, OptimizerConfig(name="muon"))[0]
    model(random_batch(1).images).sum().backward()
    with FlopCounterMode(display=False) as counter:
        muon.step()
    return int(counter.get_total_flops())


def muon(**changes: Any) -> OptimizerConfig:
    return OptimizerConfig(name="muon", **changes)


@pytest.mark.parametrize(
    ("changes", "passes", "updates"),
    [
        ({}, 3 * STEPS, 0),
        ({"optimizer": muon()}, 3 * STEPS, STEPS),
        ({"optimizer": muon(sam=0.05)}, 6 * STEPS, STEPS),
        ({"accumulate": 2}, 3 * STEPS, 0),
        ({"learns": "head"}, STEPS, 0),
        # Of five steps, two lie in the first four tenths.
        ({"head_first": 0.4, "optimizer": muon()}, 1 * 2 + 3 * 3, 3),
    ],
)
def test_passes_and_newton_schulz(
    tmp_path: Path, forward: int, changes: dict[str, Any], passes: int, updates: int
) -> None:
    state = fit_noise(tmp_path, steps=STEPS, **changes)
    assert state.images == STEPS * BATCH
    assert state.flops == passes * BATCH * forward + (updates and updates * newton_schulz())


@pytest.mark.parametrize("frozen", [0, 1, 2])
def test_matrices_that_never_learn_are_not_orthogonalised(
    tmp_path: Path, forward: int, frozen: int
) -> None:
    changes: dict[str, Any] = {"optimizer": muon(), "frozen_blocks": frozen, "head_first": 0.01}
    state = fit_noise(tmp_path, steps=2, **changes)
    # In the first of the two steps the head learns alone; `vit_test` has two equal blocks.
    expected = (1 + 3) * BATCH * forward + newton_schulz() * (2 - frozen) // 2
    assert state.flops == expected


def test_what_is_computed_twice_counts_twice(tmp_path: Path, forward: int) -> None:
    model = create_model("vit_test")
    encoder = summary(model).encoder_flops
    assert encoder is not None
    assert 0 < encoder < forward
    for sam, passes in ((0.0, 1), (0.05, 2)):
        optimizer = OptimizerConfig(sam=sam)
        changes: dict[str, Any] = {"optimizer": optimizer, "recompute_activations": True}
        state = fit_noise(tmp_path / str(sam), steps=2, **changes)
        assert state.flops == passes * 2 * BATCH * (3 * forward + encoder)


def test_a_resumed_run_counts_every_step_once(tmp_path: Path) -> None:
    whole = fit_noise(tmp_path / "whole", steps=STEPS, optimizer=muon())
    part = tmp_path / "part"
    for plug in (3, 4):  # a checkpoint is written after every second step
        with pytest.raises(KeyboardInterrupt):
            fit_noise(part, steps=STEPS, plug=plug, optimizer=muon())
    resumed = fit_noise(part, steps=STEPS, optimizer=muon())
    assert (resumed.flops, resumed.images) == (whole.flops, whole.images)


def test_steps_that_were_planned_and_not_made_cost_nothing(tmp_path: Path, forward: int) -> None:
    values = [0.5, 0.1, 0.1, 0.1, 0.1]
    flat = ScheduleConfig(kind="constant", warmup=0.0, cooldown=0.0)
    options = {"evaluations": STEPS, "patience": 2, "schedule": flat}
    state = fit_noise(tmp_path, steps=STEPS, values=values, **options)
    assert state.step == 3
    assert state.flops == 3 * 3 * BATCH * forward


def test_images_of_another_size_cost_what_they_cost() -> None:
    small = create_model("vit_test", image_size=16)
    meter = Meter(CONFIG)
    flexible = create_model("vit_test", dynamic_size=True)
    found = [meter.flops(flexible, (7, 3, side, side), head_alone=False) for side in (32, 16)]
    assert found == [3 * 7 * counted(flexible, 32), 3 * 7 * counted(small, 16)]


def test_a_teacher_costs_one_pass_at_its_own_size() -> None:
    model = create_model("vit_test", image_size=64)
    teacher = Teacher(
        model=model,
        size=(64, 64),
        mean=(0.5,) * 3,
        std=(0.5,) * 3,
        prepared_with=((0.5,) * 3, (0.5,) * 3),
        classes=torch.arange(10),
    )
    assert teacher.flops == counted(model, 64)
    student, shape = create_model("vit_test"), (7, 3, 32, 32)
    alone = Meter(CONFIG).flops(student, shape, head_alone=False)
    taught = Meter(CONFIG, teacher_flops=teacher.flops).flops(student, shape, head_alone=False)
    assert taught - alone == 7 * teacher.flops


def test_a_checkpoint_that_counted_nothing_is_of_another_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as then:
        then.setattr(checkpoint, "NUMBERS", checkpoint.NUMBERS[:-1])
        fit_noise(tmp_path, steps=2)
    with pytest.raises(ConfigError, match="written by another version of vitlab"):
        fit_noise(tmp_path, steps=2)
