"""Resuming equals never stopping, bit for bit, however the run was stopped."""

import json
import random
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runs import CHANGES, hanging_at, make_folder, same, start, train_until
from vitlab.cli.options import parse_changes
from vitlab.config import override
from vitlab.data.datasets import open_data
from vitlab.data.sources.folder import open_unlabelled
from vitlab.errors import ConfigError
from vitlab.jobs.finetune import finetune
from vitlab.jobs.plan import read_plan
from vitlab.jobs.train import decide, train
from vitlab.training.config import TrainConfig
from vitlab.training.recipes.from_scratch import pretraining

linux = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


def children_of(process: "subprocess.Popen[str]") -> list[int]:
    """The processes that a process has started, where the system tells."""
    found = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(process.pid)], capture_output=True, text=True
    )
    return [int(pid) for pid in found.stdout.split()]


def wait_until(done: Callable[[], object], seconds: float = 120.0) -> None:
    begin = time.monotonic()
    while not done():
        assert time.monotonic() - begin < seconds
        time.sleep(0.005)


def step_of(run: Path) -> int:
    """How far a run has come, by its log."""
    path = run / "metrics.jsonl"
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return int(json.loads(lines[-1])["step"]) if lines else 0


def alive(pid: int) -> bool:
    """Whether a process still runs; one that ended and nobody asked about does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nobody stopped."""
    return train(
        data="sample", out=tmp_path_factory.mktemp("runs") / "whole", changes=CHANGES
    ).folder


def test_a_run_that_was_broken_off_ends_where_the_other_does(tmp_path: Path, whole: Path) -> None:
    part = tmp_path / "part"
    train_until(7, data="sample", out=part, changes=CHANGES)
    for step in (5, 13):
        train_until(step, out=part, resume=True)
    train(out=part, resume=True)
    assert same(part, whole)


def kill_while_writing(out: Path, changes: dict[str, Any] | None, data: str) -> None:
    """SIGKILL in the middle of a checkpoint; half a file is the proof."""
    process = start(out, changes, data, before=hanging_at(3))

    def hangs() -> bool:
        assert process.poll() is None
        if not (unfinished := list(out.glob("checkpoints/.step-*"))):
            return False
        time.sleep(0.1)
        whole = max(path.stat().st_size for path in out.glob("checkpoints/step-*"))
        return all(path.exists() and 0 < path.stat().st_size < whole for path in unfinished)

    wait_until(hangs)
    process.kill()
    process.communicate()
    assert len(list(out.glob("checkpoints/.step-*"))) == 1


@linux
def test_killed_while_a_checkpoint_is_written(tmp_path: Path, whole: Path) -> None:
    part = tmp_path / "part"
    kill_while_writing(part, CHANGES, "sample")
    train(out=part, resume=True)
    assert same(part, whole)
    assert not list(part.rglob(".*safetensors*"))


def test_a_run_is_not_begun_over_another(whole: Path) -> None:
    with pytest.raises(ConfigError, match="continue it with --resume"):
        train(data="sample", out=whole, changes=CHANGES)


def test_nothing_to_resume(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no run to resume"):
        train(out=tmp_path / "nothing", resume=True)
    assert not list(tmp_path.iterdir())


def test_a_finished_run_may_be_resumed(tmp_path: Path) -> None:
    run = train(data="sample", out=tmp_path / "run", changes=CHANGES | {"budget": 2.0})
    (run.folder / "bundle" / "config.json").unlink()
    again = train(out=run.folder, resume=True)
    assert again.metrics == run.metrics
    assert (run.folder / "bundle" / "config.json").is_file()


def kill_at_random(out: Path, changes: dict[str, Any], data: str, kills: int) -> None:
    """Kill the run at random moments and twice while it writes, then let it end."""
    moments = random.Random(0)
    for number in range(kills):
        if number in (1, 3):
            kill_while_writing(out, None, data)
            continue
        process = start(out, None if number else changes, data)
        target = moments.randint(30 * number + 10, 30 * number + 35)
        wait_until(lambda: step_of(out) >= target)  # noqa: B023  # waited for
        time.sleep(moments.uniform(0.0, 0.03))
        assert process.poll() is None
        workers = children_of(process)
        process.kill()
        process.communicate()
        assert not (out / "bundle").exists()
        wait_until(lambda: not any(map(alive, workers)), 20.0)  # noqa: B023
    process = start(out, None, data)
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors


@linux
@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", ["memory", "files"])
def test_killed_five_times(tmp_path: Path, kind: str) -> None:
    data = "sample" if kind == "memory" else make_folder(tmp_path / "images")
    changes = CHANGES | {"budget": 200.0, "checkpoint_every": 3, "batch_size": 16}
    if kind == "files":
        changes |= {"workers": 2, "augment.random_resized_crop": [0.3, 1.0]}
    process = start(tmp_path / "whole", changes, data)
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors
    kill_at_random(tmp_path / "part", changes, data, kills=5)
    assert same(tmp_path / "part", tmp_path / "whole")
    assert not list((tmp_path / "part").rglob(".*safetensors*"))


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_save_and_say_how_to_go_on(tmp_path: Path, number: int, code: int) -> None:
    out = tmp_path / "run"
    process = start(out, CHANGES | {"budget": 5000.0}, "sample")
    wait_until(lambda: process.poll() is not None or list(out.glob("checkpoints/step-*")))
    process.send_signal(number)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == code
    assert f"vitlab train --resume --out {out}" in errors


def test_what_a_resumed_run_would_ignore_is_refused(tmp_path: Path) -> None:
    run = train(data="digits", out=tmp_path / "run", changes=CHANGES).folder
    for given, message in (
        ({"recipe": "cifar10_pure"}, "is a run of recipe default, not cifar10_pure"),
        ({"recipe": TrainConfig(seed=5)}, "is a run of recipe default, not this one"),
        ({"data": "sample"}, "is a run on digits, not sample"),
        ({"changes": {"seed": 1}}, "keeps seed as it was begun"),
    ):
        with pytest.raises(ConfigError, match=message):
            train(out=run, resume=True, **given)
    for options, message in (({"lora": 4}, "keeps lora"), ({"linear_probe": True}, "linear_probe")):
        with pytest.raises(ConfigError, match=message):
            finetune(out=run, resume=True, **options)
    with pytest.raises(ConfigError, match="begun with no weights"):
        finetune("cifar10", out=run, resume=True)
    train("default", data="digits", out=run, resume=True)


@pytest.mark.parametrize("precision", ["auto", "float32"])
def test_settings_of_ones_own_may_be_named_again(precision: Any, tmp_path: Path) -> None:
    short = {**CHANGES, "budget": 1.0, "changes": {"depth": 1, "conv_widths": (5, 7)}}
    recipe = replace(override(TrainConfig(), short), precision=precision)
    train(recipe, data="digits", out=tmp_path / "run")
    train(recipe, out=tmp_path / "run", resume=True)
    other = "bfloat16" if read_plan(tmp_path / "run").train.precision == "float32" else "float32"
    with pytest.raises(ConfigError, match="is a run of recipe custom, not this one"):
        train(replace(recipe, precision=other), out=tmp_path / "run", resume=True)


def test_pre_training_of_ones_own_is_told_whole(tmp_path: Path) -> None:
    base = pretraining("mae")
    images = open_unlabelled("digits")
    for recipe, told in (
        (replace(base, seed=3), "--seed 3"),
        (replace(base, model="vit_test"), "--set model=vit_test --set model.width=128"),
        (replace(base, changes={"depth": 1}), "--set model=vit_cifar_pure --set model.depth=1"),
        (pretraining("mae", model="vit_test"), "--set model=vit_test"),
    ):
        plan = decide(recipe, "digits", images, tmp_path / "run", {})
        assert plan.command.startswith("vitlab pretrain --objective mae --data digits --out ")
        assert plan.command.partition(f"{tmp_path / 'run'} ")[2].startswith(told)
        assert told.startswith("--set model=") or "model" not in plan.command


def test_a_recipe_of_ones_own_is_told_whole(tmp_path: Path) -> None:
    recipe = override(TrainConfig(), CHANGES)
    recipe = replace(recipe, changes={"depth": 1}, augment=replace(recipe.augment, shift=3))
    plan = decide(recipe, "digits", open_data("digits"), tmp_path / "run", {})
    assert plan.recipe == "custom"
    words = shlex.split(plan.command)
    assert words[:3] == ["vitlab", "train", "default"]
    given = dict(zip(words[7::2], words[8::2], strict=True))
    changes: dict[str, Any] = parse_changes(
        [words[i + 1] for i, word in enumerate(words) if word == "--set"]
    )
    if "--steps" in given:
        changes |= {"budget": float(given["--steps"]), "budget_in": "steps"}
    changes |= {"batch_size": int(given.get("--batch-size", recipe.batch_size))}
    again = decide("default", "digits", open_data("digits"), tmp_path / "run", changes)
    assert again.train == replace(recipe, changes={})
    assert again.model == plan.model
