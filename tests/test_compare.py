"""The comparison of several models: what is run, what is not run again, and what is told of it."""

import importlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).resolve().parents[1] / "benchmarks"))
compare: Any = importlib.import_module("compare")

TWO = ("cnn_tutorial", "vit_seed")
LINE: dict[str, Any] = {
    "pflops": 0.25,
    "minutes": 29.5,
    "images_seen": 640_000,
    "parameters": 1_040_000,
    "encoder_share": 0.58,
    "held_out_accuracy": 0.5,
}


def result(name: str, seed: int, accuracy: float) -> dict[str, Any]:
    interval = [accuracy - 0.01, accuracy + 0.01]
    told = {"seed": seed, "test_accuracy": accuracy, "test_interval": interval}
    return {"contestant": name, **LINE, **told}


class Fake:
    """Commands that leave what the real ones leave; `train` may end early."""

    def __init__(self, stops: Callable[[Path], bool] = lambda run: False) -> None:
        self.calls: list[list[str]] = []
        self.stops = stops

    def __call__(self, words: list[str]) -> str:
        self.calls.append(words[1:])
        if words[1].endswith("result-of"):
            run = Path(words[2])
            assert (run / "bundle" / "config.json").is_file()
            seed = int(run.name.rpartition("-")[2])
            return json.dumps({k: v for k, v in result("", seed, 0.5).items() if k != "contestant"})
        run = Path(words[words.index("--out") + 1])
        (run / "bundle").mkdir(parents=True, exist_ok=True)
        (run / "config.json").write_text("{}")
        if self.stops(run):
            raise subprocess.CalledProcessError(130, words)
        (run / "bundle" / "config.json").write_text("{}")
        return ""


def trained(fake: Fake) -> list[str]:
    """Arguments of the training commands."""
    return [" ".join(words[2:]) for words in fake.calls if words[:2] == ["-m", "vitlab"]]


def arguments(out: Path, *more: str) -> list[str]:
    return ["--out", str(out), "--only", *TWO, *more]


def test_commands_are_those_of_a_user(tmp_path: Path) -> None:
    fake = Fake()
    assert compare.main(arguments(tmp_path, "--minutes", "7", "--seeds", "3"), fake) == 0
    assert trained(fake) == [
        f"train default --set model=cnn_tutorial --data cifar10 --out {tmp_path}/cnn_tutorial-3 "
        "--seed 3 --minutes 7.0 --json",
        f"train seed --data cifar10 --out {tmp_path}/vit_seed-3 --seed 3 --minutes 7.0 --json",
    ]
    lines = compare.read(tmp_path / "results.jsonl")
    assert [line["contestant"] for line in lines] == list(TWO)
    assert (tmp_path / "compare.png").read_bytes().startswith(b"\x89PNG")
    again = Fake()
    assert compare.main(arguments(tmp_path, "--seeds", "3"), again) == 0
    assert again.calls == []


def test_what_was_broken_off_is_resumed_and_the_others_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake = Fake(stops=lambda run: run.name == "cnn_tutorial-0")
    assert compare.main(arguments(tmp_path), fake) == 1
    assert "failed: cnn_tutorial, seed 0 (exit code 130)" in capsys.readouterr().err
    assert [line["contestant"] for line in compare.read(tmp_path / "results.jsonl")] == [TWO[1]]
    again = Fake()
    assert compare.main(arguments(tmp_path), again) == 0
    assert trained(again) == [f"train --resume --out {tmp_path}/cnn_tutorial-0 --json"]
    assert len(compare.read(tmp_path / "results.jsonl")) == 2


def test_a_finished_run_without_its_line_is_not_trained_again(tmp_path: Path) -> None:
    compare.main(arguments(tmp_path), Fake())
    results = tmp_path / "results.jsonl"
    first, second = results.read_text().splitlines()
    results.write_text(f"{first}\n{second[:20]}")  # a crash in the middle of a line
    again = Fake()
    assert compare.main(arguments(tmp_path), again) == 0
    assert trained(again) == []
    assert len(again.calls) == 1
    assert len(compare.read(results)) == 2


def test_the_table_has_the_best_first_with_its_spread() -> None:
    found = [
        result("vit_seed", 0, 0.5),
        result("cnn_tutorial", 0, 0.6),
        result("cnn_tutorial", 1, 0.7),
    ]
    best, other = compare.scores(found)
    assert (best.name, best.runs, best.accuracy) == ("cnn_tutorial", 2, pytest.approx(0.65))
    deviation = 0.1 / 2**0.5  # of two numbers that are 0.1 apart
    assert (best.low, best.high) == pytest.approx((0.65 - deviation, 0.65 + deviation))
    assert (other.low, other.high) == (0.49, 0.51)
    _, _, first, second = compare.table([best, other]).splitlines()
    assert first.endswith("| 0.25 PFLOPs | 29.5 | 50.00% | 65.00% (± 7.07%, 2 seeds) |")
    assert "`vitlab train default --set model=cnn_tutorial`" in first
    assert second.endswith("| 50.00% (49.0% to 51.0%) |")


def test_a_contestant_for_real(tmp_path: Path) -> None:
    """Two processes, the training and its result, as in a real comparison but for the size."""
    tiny = ("--set", "batch_size=2", "--set", "images_per_class=5", "--set", "evaluations=1")
    words = ["--out", str(tmp_path), "--data", "sample", "--steps", "1", *tiny]
    assert compare.main([*words, "--only", "cnn_tutorial"]) == 0
    (line,) = compare.read(tmp_path / "results.jsonl")
    assert (line["contestant"], line["model"]) == ("cnn_tutorial", "cnn_tutorial")
    assert (line["steps"], line["images_seen"], line["test_images"]) == (1, 2, 1000)
    assert line["encoder_share"] == 0
    assert f"{line['test_accuracy']:.2%}" in (tmp_path / "table.md").read_text()
