"""`vitlab demo`."""

import json
from pathlib import Path

import numpy as np
import pytest

from command import Command
from vitlab.cli.thumbnails import thumbnail
from vitlab.errors import ConfigError
from vitlab.tasks import demo as demo_module
from vitlab.tasks.demo import free_folder


def test_the_demo_trains_evaluates_and_shows(command: Command, tmp_path: Path) -> None:
    outcome = command("demo", "--steps", "2", "--out", str(tmp_path / "run"))
    assert (outcome.code, outcome.err) == (0, "")
    assert "vit_cifar on sample: 2 steps" in outcome.out
    assert "test accuracy" in outcome.out
    assert "guessing gives 10%" in outcome.out
    report = tmp_path / "run" / "report.html"
    assert str(report) in outcome.out
    assert "<html" in report.read_text()
    for label in ("airplane", "truck"):
        assert f"  {label} " in outcome.out


def test_as_json(command: Command, tmp_path: Path) -> None:
    outcome = command("demo", "--steps", "1", "--out", str(tmp_path / "run"), "--json")
    told = json.loads(outcome.out)
    assert 0 <= told["test_accuracy"] <= 1
    assert len(told["shown"]) == 10
    assert all(len(shown["top"]) == 3 for shown in told["shown"])
    assert Path(told["bundle"], "model.safetensors").is_file()


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
