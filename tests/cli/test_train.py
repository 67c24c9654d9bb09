"""`vitlab train`: its options, what it prints, and what becomes of mistakes."""

import json
from pathlib import Path

import pytest
import torch

import vitlab
from command import Command
from vitlab.errors import Interrupted
from vitlab.jobs import train as job
from vitlab.models.cost import cost
from vitlab.models.variants import create_model
from vitlab.report.numbers import short
from vitlab.training import batch_size, loop
from vitlab.training.optim import optimizer_flops
from vitlab.training.recipes.from_scratch import recipe

STEP = {"model": "vit_test", "budget_in": "steps", "budget": 1.0}
SMALL = ("--data", "sample", "--steps", 2, "--set", "model=vit_test", "--set", "evaluations=1")


def test_a_run_is_told_in_lines_and_as_json(command: Command, tmp_path: Path) -> None:
    outcome = command("train", *SMALL, "--batch-size", 16, "--out", tmp_path / "run", "--json")
    assert outcome.code == 0, outcome
    told = json.loads(outcome.out)
    assert Path(told["report"]).is_file()
    assert 0 <= told["test_accuracy"] <= 1
    assert (told["steps"], told["images_seen"]) == (2, 32)
    assert told["pflops"] * 1e15 == pytest.approx(spent_by_default(2, 16))
    assert told["minutes"] > 0
    stored = json.loads((tmp_path / "run" / "bundle" / "config.json").read_text())["provenance"]
    for name in ("steps", "images_seen", "pflops", "minutes"):
        assert stored[name] == told[name], name
    assert "vit_test on sample: 2 steps of 16 images" in outcome.err
    assert json.loads((tmp_path / "run" / "config.json").read_text())["train"]["batch_size"] == 16


def test_a_result_is_one_line_in_python(tmp_path: Path) -> None:
    out = tmp_path / "run"
    result = vitlab.train(data="digits", out=out, changes=STEP)
    assert repr(result).startswith(f"RunResult({str(out)!r}, test accuracy ")
    assert "\n" not in repr(result)
    assert len(repr(result)) < 100 + len(str(out))


def spent_by_default(steps: int, batch: int) -> int:
    """FLOPs of so many updates of `vit_test` by the default recipe."""
    model, optimizer = create_model("vit_test"), recipe("default").optimizer
    return steps * (3 * batch * cost(model).flops + optimizer_flops(model, optimizer))


def test_a_finished_run_says_what_it_cost(command: Command, tmp_path: Path) -> None:
    outcome = command("train", *SMALL, "--batch-size", 16, "--out", tmp_path / "run")
    flops = spent_by_default(2, 16)
    assert f"\ncost:   {short(flops)}FLOPs in " in outcome.out
    assert " (32 images in 2 steps)\n" in outcome.out
    report = (tmp_path / "run" / "report.html").read_text()
    assert f"{short(flops)}FLOPs" in report
    assert f"{short(flops)}FLOPs".replace(" ", "\u00a0") in report


def test_auto_says_what_it_chose(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fit(*_: object, **__: object) -> None:
        raise Interrupted(2, 0, 2)

    monkeypatch.setattr(job, "fit", fit)
    monkeypatch.setattr(batch_size, "free_bytes", lambda: 2**22)
    outcome = command("train", *SMALL, "--batch-size", "auto", "--out", tmp_path / "run")
    assert outcome.code == 130, outcome
    chosen = json.loads((tmp_path / "run" / "config.json").read_text())["train"]["batch_size"]
    assert 1 <= chosen < 100
    assert f"batch size {chosen}, the largest up to 100 that fits" in outcome.out
    assert f"2 steps of {chosen} images" in outcome.out
    resume = ("train", "--resume", "--out", tmp_path / "run")
    assert "keeps licence as it was begun" in command(*resume, "--licence", "MIT").mistake
    kept = "a resumed run keeps {} as it was begun; leave it out"
    assert kept.format("batch_size") in command(*resume, "--batch-size", "auto").mistake
    assert kept.format("seed") in command(*resume, "--set", "seed=1").mistake
    resumed = command(*resume)
    assert f"2 steps of {chosen} images" in resumed.out


def test_out_of_memory_is_one_line(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate 2 GiB")

    monkeypatch.setattr(loop, "train_step", full)
    outcome = command("train", *SMALL, "--out", tmp_path / "run", "--json")
    message = outcome.err.splitlines()[-1]
    assert outcome.code == 2
    assert "not enough memory for batches of 100 images; 50 would fit" in message
    assert "--batch-size auto" in message
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--batch-size", "many"], "'many' is neither a number of images nor auto"),
        (["--batch-size", "0"], "'0' is neither a number of images nor auto"),
        (["--set", "recompute_activation=true"], "did you mean recompute_activations"),
        (["--set", "compile=perhaps"], "key 'compile': found 'perhaps', expected bool"),
        (
            ["seed", "--set", "model=cnn_tutorial", "--set", "recompute_activations=true"],
            "works on encoder blocks, and cnn_tutorial has none",
        ),
        (["--epochs", "1"], "--epochs and --steps: a run has one budget"),
    ],
)
def test_mistakes_are_one_line_and_write_nothing(
    command: Command, tmp_path: Path, arguments: list[str], message: str
) -> None:
    outcome = command("train", *SMALL, *arguments, "--out", tmp_path / "run")
    assert message in outcome.mistake
    assert list(tmp_path.iterdir()) == []
