"""Training through `torch.compile`: the same learning, plain names, and a clear line without it."""

import importlib
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tiny_runs import CHANGES, fit_noise, metrics_of, random_batch, same_weights
from vitlab.errors import ConfigError
from vitlab.jobs.train import train
from vitlab.models.variants import create_model
from vitlab.training import state as forward
from vitlab.training.config import TrainConfig
from vitlab.training.state import new_state
from vitlab.training.step import train_step
from vitlab.weights.container import open_weights

CPU = torch.device("cpu")
pytestmark = pytest.mark.usefixtures("no_type_checks")


@pytest.fixture(autouse=True)
def fresh() -> None:
    """Nothing compiled by an earlier test."""
    torch.compiler.reset()


def import_inductor() -> None:
    """Torch warns of its own old parts when it loads this."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torch._inductor.compile_fx  # noqa: F401


def names_in(run: Path) -> list[str]:
    """Of the tensors in the last checkpoint."""
    file = open_weights(run / "checkpoints" / "step-00000005.safetensors")
    file.close()
    return list(file.shapes)


@pytest.fixture
def no_compiler() -> Iterator[None]:
    """A machine without one: what inductor looks for does not exist."""
    import_inductor()
    settings: Any = importlib.import_module("torch._inductor.config")
    with settings.patch({"cpp.cxx": (None, "/nowhere/g++")}):
        yield


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


@pytest.mark.slow
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


def test_a_run_resumes_evaluates_and_saves_plain_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forward, "BACKEND", "eager")
    plain = fit_noise(tmp_path / "plain", steps=5, ema=0.9)
    with pytest.raises(KeyboardInterrupt):
        fit_noise(tmp_path / "compiled", steps=5, ema=0.9, compile=True, plug=3)
    found = fit_noise(tmp_path / "compiled", steps=5, ema=0.9, compile=True)
    # The same operations one by one, and the same random numbers.
    assert same_weights(found.model, plain.model)
    assert metrics_of(tmp_path / "compiled") == metrics_of(tmp_path / "plain")
    assert names_in(tmp_path / "compiled") == names_in(tmp_path / "plain")


def test_without_a_compiler_nothing_is_written(tmp_path: Path, no_compiler: None) -> None:
    with pytest.raises(ConfigError, match="finds no working compiler for cpu") as caught:
        train(data="sample", out=tmp_path / "run", changes=CHANGES | {"compile": True})
    assert "\n" not in str(caught.value)
    assert "install one" in str(caught.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")
def test_inductor_learns_the_same() -> None:
    import_inductor()
    forward.check_compiler(CPU)
    plain, _ = updates()
    found, _ = updates(compile=True)
    # Fused kernels round differently, and three updates amplify that.
    assert found == pytest.approx(plain, rel=1e-3)
