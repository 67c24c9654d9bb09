"""Training through `torch.compile`: the same learning, plain names, and a clear line without it."""

import shutil
from pathlib import Path

import pytest
import torch

from train.runs import SMALL, metrics_of, random_batch
from vitlab.errors import ConfigError
from vitlab.inference.classifier import load
from vitlab.models.registry import create_model
from vitlab.tasks.train import train
from vitlab.train import forward
from vitlab.train.config import TrainConfig
from vitlab.train.state import new_state
from vitlab.train.step import train_step

CPU = torch.device("cpu")
pytestmark = pytest.mark.usefixtures("no_type_checks")


@pytest.fixture(autouse=True)
def fresh() -> None:
    """Nothing compiled by an earlier test."""
    torch.compiler.reset()


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without one: what inductor looks for does not exist."""
    monkeypatch.setattr("torch._inductor.config.cpp.cxx", (None, "/nowhere/g++"))
    from torch._inductor import cpp_builder

    cpp_builder.get_cpp_compiler.cache_clear()


def updates(**changes: bool) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Losses and weights of three updates from the same start."""
    config = TrainConfig(**changes)
    torch.manual_seed(0)
    state = new_state(create_model("vit_test"), config)
    state.model.train()
    losses = [
        train_step(state, random_batch(8), config, lr_factor=1.0).loss.item() for _ in range(3)
    ]
    return losses, state.model.state_dict()


@pytest.mark.parametrize("recompute", [False, True])
def test_losses_and_names_are_those_of_the_plain_model(
    monkeypatch: pytest.MonkeyPatch, recompute: bool
) -> None:
    monkeypatch.setattr(forward, "BACKEND", "aot_eager")
    plain, weights = updates()
    found, compiled = updates(compile=True, recompute_activations=recompute)
    # The same operations, decomposed: rounding differs.
    assert found == pytest.approx(plain, rel=1e-4)
    assert list(compiled) == list(weights)
    for name, value in weights.items():
        torch.testing.assert_close(compiled[name], value, atol=1e-4, rtol=1e-3)


def test_a_whole_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward, "BACKEND", "eager")
    plain = train(data="sample", out=tmp_path / "plain", changes=SMALL)
    run = train(data="sample", out=tmp_path / "compiled", changes=SMALL | {"compile": True})
    assert [m["name"] for m in metrics_of(run.folder)] == [
        m["name"] for m in metrics_of(plain.folder)
    ]
    for a, b in zip(metrics_of(run.folder), metrics_of(plain.folder), strict=True):
        assert a["value"] == pytest.approx(b["value"], rel=1e-3)
    assert load(run.folder).labels == load(plain.folder).labels


def test_without_a_compiler_nothing_is_written(tmp_path: Path, no_compiler: None) -> None:
    with pytest.raises(ConfigError, match="finds no working compiler for cpu") as caught:
        train(data="sample", out=tmp_path / "run", changes=SMALL | {"compile": True})
    assert "\n" not in str(caught.value)
    assert "install one" in str(caught.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")
def test_inductor_learns_the_same() -> None:
    forward.check_compiler(CPU)
    plain, _ = updates()
    found, _ = updates(compile=True)
    # Fused kernels round differently, and three updates amplify that.
    assert found == pytest.approx(plain, rel=1e-3)
