"""Options that `train`, `finetune` and `pretrain` share: --find-lr, --sam and --workers."""

import json
import re
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import pytest
import torch
from PIL import Image

from command import ROOT, Command
from data.messy_folder import photograph
from data.picture_files import encoded
from vitlab.data.pool import READING_SECONDS, ReadingTime
from vitlab.jobs import training_run
from vitlab.machine import device as machine
from vitlab.machine.device import decoding_processes
from vitlab.models.cost import cost
from vitlab.registry import RECIPES
from vitlab.training.find_lr import find_lr
from vitlab.training.recipes.from_scratch import default, mae

SMALL = (
    *("--set", "model=vit_test", "--set", "evaluations=1", "--batch-size", "8", "--steps", "1"),
    *("--set", "judge_all=false", "--set", "hold_out=0.2", "--set", "precision=float32"),
)
OPTIONS = ("--find-lr", "--sam", "0.05", "--workers", "auto")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(12):
        path = tmp_path / "data" / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encoded(photograph(number), "PNG"))
    return tmp_path / "data"


def plan(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "config.json").read_text())
    return found


def test_all_that_train_take_them(
    command: Command, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VITLAB_ONNX", "0")
    monkeypatch.setattr(machine, "cores", lambda: 4)
    monkeypatch.setattr(training_run, "find_lr", partial(find_lr, steps=3))
    data, train, learnt = ("--data", folder, "--out"), tmp_path / "t", tmp_path / "p"
    for verb, out, usual in (("train", train, default()), ("pretrain", learnt, mae())):
        done = command(verb, *data, out, *SMALL, *OPTIONS)
        assert done.code == 0, done.err
        made = plan(out)
        found = made["train"]["optimizer"]
        assert f"range test: learning rate {found['lr']:g} (find-lr.png)" in done.out
        ratio = usual.optimizer.muon_lr / usual.optimizer.lr
        assert found["muon_lr"] == pytest.approx(ratio * found["lr"])
        assert found["sam"] == 0.05
        assert made["train"]["workers"] == 1
        for words in ("--find-lr", "--set optimizer.sam=0.05", "--set workers=1"):
            assert words in made["command"]
        with Image.open(out / "find-lr.png") as picture:
            assert picture.width > 500
    tuned = tmp_path / "f"
    small = SMALL[2:]  # the weights decide the model
    done = command("finetune", "--from", train, *data, tuned, *small, *OPTIONS[1:])
    assert done.code == 0, done.err
    assert plan(tuned)["train"]["workers"] == 1
    assert plan(tuned)["train"]["optimizer"]["sam"] == 0.05
    resume = ("train", "--resume", "--out", train)
    assert "keeps find_lr as it was begun" in command(*resume, "--find-lr").mistake
    assert "keeps optimizer.sam as it was begun" in command(*resume, *OPTIONS[1:]).mistake
    assert command(*resume, "--workers", "0").code == 0  # no weight depends on it


def test_what_excludes_them_is_one_line(command: Command, folder: Path, tmp_path: Path) -> None:
    run = ("train", "--data", folder, "--out", tmp_path / "run", *SMALL)
    both = command(*run, "--find-lr", "--set", "optimizer.lr=0.1")
    assert "find_lr and optimizer.lr: either finds or sets" in both.mistake
    assert (
        "'some' is neither a number of processes nor auto"
        in command(*run, "--workers", "some").mistake
    )
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("kind", "cores", "expected"),
    [("cpu", 1, 0), ("cpu", 2, 1), ("cpu", 16, 4), ("cuda", 4, 4), ("cuda", 64, 8)],
)
def test_processes_that_decode_follow_the_cores(kind: str, cores: int, expected: int) -> None:
    assert decoding_processes(torch.device(kind), cores) == expected


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def read_for(share: float) -> tuple[Clock, ReadingTime]:
    """A training of 30 seconds in which this share is spent waiting for images."""
    clock = Clock()
    reading = ReadingTime(clock)
    with reading.waiting():
        clock.now += 1000  # processes start
    for _ in range(30):
        assert clock.now >= 1100 + READING_SECONDS or reading.hint(0, advised=2) is None
        with reading.waiting():
            clock.now += share
        clock.now += 1 - share
    return clock, reading


def test_a_hint_is_given_once_where_reading_limits_the_speed() -> None:
    _, slow = read_for(0.45)
    hint = slow.hint(0, advised=2)
    assert hint is not None
    assert re.match(r"reading images takes 45% of the training time; --workers auto", hint)
    assert slow.hint(0, advised=2) is None
    _, served = read_for(0.45)
    assert str(served.hint(2, advised=2)).endswith("files of fewer pixels are read faster")
    _, quick = read_for(0.2)
    assert quick.hint(0, advised=2) is None


def test_help_states_what_recipes_gave(command: Command) -> None:
    shown = " ".join(command("train", "--help").out.split())
    runs: dict[str, list[float]] = {}
    for line in (ROOT / "docs" / "results" / "record.jsonl").read_text().splitlines():
        found = json.loads(line)
        runs.setdefault(found["recipe"], []).append(found["test_accuracy"])
    for name, accuracies in runs.items():
        assert re.search(rf"{name}: [^%]* CIFAR-10 {100 * mean(accuracies):.1f} ", shown), name
    assert all(f"{name}: " in shown for name in RECIPES)
    imagenet = 3 * 300 * 1_281_167 * cost("vit_ti16").flops / 1e15
    assert f"{round(imagenet, -2):,.0f} PFLOPs" in shown
    assert "16,000 times" in shown
    assert imagenet / 0.183 == pytest.approx(16_000, rel=0.02)
