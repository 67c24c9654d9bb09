"""Training in half precision: what it changes, and who decides it."""

import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tiny_runs import CHANGES, CONFIG, fit_noise, random_batch
from vitlab.jobs.train import train
from vitlab.jobs.training_run import Watcher
from vitlab.machine.device import multiplies_bfloat16
from vitlab.models.variants import create_model
from vitlab.training.config import OptimizerConfig, TrainConfig
from vitlab.training.state import new_state
from vitlab.training.step import backward, train_step


def gradients(config: TrainConfig) -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    state = new_state(create_model("vit_test"), config)
    with torch.no_grad():
        for parameter in state.model.parameters():  # a head of zeros would pass nothing on
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    backward(state, random_batch(7), config)
    return {name: p.grad for name, p in state.model.named_parameters() if p.grad is not None}


def test_bfloat16_gives_the_gradients_but_for_rounding() -> None:
    exact, rounded = (
        gradients(replace(CONFIG, precision=precision)) for precision in ("float32", "bfloat16")
    )
    assert exact.keys() == rounded.keys()
    for name, gradient in exact.items():
        assert rounded[name].dtype == torch.float32
        # 8 bits are 0.4 % of a number; a dozen roundings in a row remain far below a tenth.
        error = (rounded[name] - gradient).norm() / gradient.norm()
        assert 0 < error < 0.1, name


def test_weights_and_momentum_stay_float32(tmp_path: Path) -> None:
    state = fit_noise(tmp_path, steps=2, precision="bfloat16")
    assert {p.dtype for p in state.model.parameters()} == {torch.float32}
    kept = [v for o in state.optimizers for s in o.state.values() for v in s.values()]
    assert {value.dtype for value in kept} == {torch.float32}


@pytest.mark.parametrize(("able", "settled"), [(True, "bfloat16"), (False, "float32")])
def test_auto_is_settled_by_the_first_machine_and_kept(
    able: bool, settled: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes: list[str] = []
    watcher, out = Watcher(note=notes.append), tmp_path / "run"
    monkeypatch.setattr("vitlab.machine.device.has_bfloat16_products", lambda: able)
    train(data="digits", out=out, changes=CHANGES | {"precision": "auto"}, watcher=watcher)
    stored = json.loads((out / "config.json").read_text())
    assert stored["train"]["precision"] == settled
    assert f"precision={settled}" in shlex.split(stored["command"])
    assert [note for note in notes if "bfloat16" in note] == notes[: int(able)]
    monkeypatch.setattr("vitlab.machine.device.has_bfloat16_products", lambda: not able)
    train(out=out, resume=True)
    assert json.loads((out / "config.json").read_text()) == stored


def test_only_devices_with_such_products_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitlab.machine.device.has_bfloat16_products", lambda: True)
    assert multiplies_bfloat16(torch.device("cpu"))
    assert not multiplies_bfloat16(torch.device("mps"))


@pytest.mark.parametrize("clip", [0.0, 1.0])
@pytest.mark.parametrize("sam", [0.0, 0.05])
def test_an_overflow_in_float16_changes_no_weight(clip: float, sam: float) -> None:
    optimizer = OptimizerConfig(name="muon", clip_norm=clip, sam=sam)
    config = replace(CONFIG, precision="float16", optimizer=optimizer)
    torch.manual_seed(0)
    state = new_state(create_model("vit_test"), config)
    train_step(state, random_batch(7), config, lr_factor=1.0)
    before = {name: value.clone() for name, value in state.model.state_dict().items()}
    head = state.model.head.weight.register_hook(lambda gradient: gradient * float("inf"))
    scale = state.scaler.get_scale()
    stats = train_step(state, random_batch(7, seed=1), config, lr_factor=1.0)
    assert stats.loss.isfinite()
    assert not stats.grad_norm.isfinite()
    assert state.scaler.get_scale() == scale / 2
    for name, value in state.model.state_dict().items():
        assert torch.equal(value, before[name]), name
    head.remove()
    train_step(state, random_batch(7, seed=2), config, lr_factor=1.0)
    assert all(value.isfinite().all() for value in state.model.state_dict().values())
    assert not torch.equal(state.model.head.weight, before["head.weight"])


def test_a_head_that_learns_alone_in_float16(tmp_path: Path) -> None:
    state = fit_noise(
        tmp_path,
        steps=4,
        precision="float16",
        head_first=0.5,
        optimizer=OptimizerConfig(name="muon"),
    )
    assert state.step == 4
    assert all(p.isfinite().all() for p in state.model.parameters())
