"""`vitlab demo`."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from command import Command
from vitlab.cli.output import thumbnail
from vitlab.data.sources.cifar import CIFAR10_LABELS
from vitlab.errors import ConfigError
from vitlab.jobs import demo as demo_module
from vitlab.jobs.demo import free_folder
from vitlab.jobs.evaluate import evaluate
from weights.bundles import bundle_inside


@pytest.fixture
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with a tiny model inside."""
    return bundle_inside(tmp_path / "bundled", monkeypatch)


def test_the_model_inside_is_shown_tuned_and_judged_again(
    command: Command, inside: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    outcome = command("demo", "--steps", "2", "--out", out)
    assert (outcome.code, outcome.err) == (0, "")
    shown, tuned, judged = (outcome.out.find(text) for text in ("airplane ", "2 steps", "after:"))
    assert 0 < shown < tuned < judged
    assert "vit_test.cifar10, the model inside the package" in outcome.out
    assert "it has learned from most of them before" in outcome.out
    before = evaluate(inside, "sample").evaluation
    assert f"before: accuracy {before.figures['accuracy']:.2%} (" in outcome.out
    after = json.loads((out / "bundle" / "config.json").read_text())
    assert f"after:  accuracy {after['metrics']['test_accuracy']:.2%} (" in outcome.out
    assert after["provenance"]["from"] == "vit_test.cifar10"
    assert "<html" in (out / "report.html").read_text()
    commands = [line for line in outcome.out.splitlines() if "  vitlab " in line]
    assert len(commands) == 3
    for line in commands:
        name = line.partition("vitlab ")[2].split()[0]
        assert command(name, "--help").code == 0
    for label in CIFAR10_LABELS:
        assert f"  {label} " in outcome.out


def test_the_model_inside_for_programs(command: Command, inside: Path, tmp_path: Path) -> None:
    outcome = command("demo", "--steps", "1", "--out", tmp_path / "run", "--json")
    told = json.loads(outcome.out)
    assert told["model"] == "vit_test.cifar10"
    assert told["before"]["images"] == told["test_images"] == 1000
    assert 0 <= told["before"]["accuracy"] <= 1
    assert [shown["truth"] for shown in told["shown"]] == list(CIFAR10_LABELS)
    assert told["pflops"] > 0
    assert Path(told["bundle"], "model.safetensors").is_file()


def test_a_minute_unless_told(
    inside: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}

    def ask(model: str, **given: Any) -> None:
        asked.update(given, model=model)
        raise KeyboardInterrupt

    monkeypatch.setattr(demo_module, "finetune", ask)
    with pytest.raises(KeyboardInterrupt):
        demo_module.tune(tmp_path)
    assert asked["changes"] == {"budget": 1.0, "budget_in": "minutes"}
    assert (asked["model"], asked["data"]) == ("cifar10", "sample")


def test_a_folder_that_is_taken_is_refused_at_once(command: Command, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine.txt").write_text("mine")
    assert "is not empty" in command("demo", "--out", tmp_path / "run").mistake


def test_one_budget(command: Command, tmp_path: Path) -> None:
    out = str(tmp_path / "run")
    outcome = command("demo", "--steps", "1", "--minutes", "1", "--out", out)
    assert outcome.code == 2
    assert "a run has one budget" in outcome.err
    assert not (tmp_path / "run").exists()


def test_a_demo_never_overwrites_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert free_folder(tmp_path) == tmp_path / "demo"
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo-2").mkdir()
    assert free_folder(tmp_path) == tmp_path / "demo-3"
    monkeypatch.setattr(demo_module, "TRIES", 3)
    with pytest.raises(ConfigError, match="holds 2 demos"):
        free_folder(tmp_path)


def test_a_thumbnail_has_the_colours_of_the_image() -> None:
    image = np.zeros((4, 4, 3), dtype=np.uint8)
    image[0] = (255, 0, 0)
    image[1] = (0, 255, 0)
    image[:, 3] = (0, 0, 255)
    text = thumbnail(image, 4)
    assert text.plain == "▀▀▀▀\n▀▀▀▀"
    styles = [str(span.style) for span in text.spans]
    assert styles[0] == "#ff0000 on #00ff00"
    assert styles[3] == "#0000ff on #0000ff"
