"""`vitlab export`: what it prints, and its exit codes."""

import json
from pathlib import Path
from typing import Any

import pytest

from command import Command
from data.fetchable import IMAGES, fetchable
from vitlab.errors import ConfigError, Disagrees
from vitlab.jobs import export as export_accuracy
from vitlab.jobs import export as export_task
from vitlab.jobs.export import Accuracy

pytest.importorskip("onnxscript")
pytestmark = pytest.mark.usefixtures("no_type_checks")


def test_a_file_is_written_and_described(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged = Accuracy(
        data="x", images=200, before=0.75, after=0.745, agreement=0.99, interval=(-0.012, 0.002)
    )
    splits = []

    def judge(*_: Any, split: str) -> Accuracy:
        splits.append(split)
        return judged

    monkeypatch.setattr(export_accuracy, "accuracy_of", judge)
    monkeypatch.setattr(export_accuracy, "before", lambda *_, split, download: split)
    file = tmp_path / "a.onnx"
    arguments = ["export", "cnn_tutorial", "--output", str(file)]
    told = command(*arguments, "--data", "x", "--split", "all")
    assert (told.code, told.err, splits) == (0, "", ["all"])
    assert "any number of images, 3 x 32 x 32, normalised images" in told.out
    assert "random: a model's name has no trained weights" in told.out
    assert "75.00%   74.50%   -0.50% (-1.20% to +0.20%)       99.00%      200" in told.out
    assert command(*arguments).mistake == f"{file} exists; --force overwrites it"
    facts = json.loads(command(*arguments, "--force", "--json").out)
    assert facts["bytes"] == file.stat().st_size
    assert facts["comparison"]["largest"] <= facts["comparison"]["allowed"]
    assert facts["facts"]["batch"] is None
    assert facts["accuracy"] is None


def test_what_is_wrong_with_the_data_is_told_before_anything_is_written(
    command: Command, tmp_path: Path
) -> None:
    file = tmp_path / "a.onnx"
    arguments = ["export", "cifar10", "--output", str(file)]
    assert "no such" in command(*arguments, "--data", str(tmp_path / "nothing")).mistake
    assert "split" in command(*arguments, "--data", "sample", "--split", "tset").mistake
    program = command(*arguments, "--data", "sample", "--format", "torch-export")
    assert "onnx or aoti" in program.mistake
    assert list(tmp_path.iterdir()) == []


def test_what_is_measured_before_has_the_same_settings(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told(model: str, data: str, **settings: Any) -> None:
        raise ConfigError(f"{model} {data} {settings}")

    monkeypatch.setattr(export_accuracy, "evaluate", told)
    found = command(
        *("export", "cifar10", "--output", str(tmp_path / "a.onnx"), "--data", "sample"),
        *("--image-size", "24x40", "--set", "attention=full"),
    )
    settings = {"split": "test", "engine": "torch", "image_size": (24, 40), "attention": "full"}
    assert found.mistake.startswith("cifar10 sample {")
    for name, value in settings.items():
        assert f"{name!r}: {value!r}" in found.mistake


def test_missing_data_is_fetched_on_request(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, data = fetchable(monkeypatch, tmp_path / "toy")
    file = tmp_path / "a.onnx"
    asked = ("export", model, "--output", file, "--data", data)
    assert "get it: vitlab data fetch toy" in command(*asked).mistake
    outcome = command(*asked, "--download", "--json")
    assert outcome.code == 0, outcome.err
    assert json.loads(outcome.out)["accuracy"]["images"] == IMAGES


def test_a_model_that_disagrees_ends_with_1(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def differ(*_: Any, **__: Any) -> None:
        raise Disagrees("the exported model differs")

    monkeypatch.setattr(export_task, "export", differ)
    told = command("export", "vit_test", "--output", str(tmp_path / "a.onnx"))
    assert (told.code, told.out, told.err) == (1, "", "error: the exported model differs\n")


def test_a_model_without_tokens_merges_none(command: Command, tmp_path: Path) -> None:
    told = command(
        *("export", "cnn_tutorial", "--output", str(tmp_path / "a.onnx"), "--merge-tokens", "2")
    )
    assert told.mistake.startswith("merge_tokens 2: a TutorialCNN has no tokens that could be mer")
    assert not list(tmp_path.iterdir())


def test_pixels_are_not_for_measuring(command: Command, tmp_path: Path) -> None:
    told = command(
        *("export", "vit_test", "--output", str(tmp_path / "a.onnx"), "--data", "sample"),
        "--preprocess-inside",
    )
    assert "--data measures files that take normalised images" in told.mistake


def test_the_size_may_be_set_as_any_other_field(command: Command, tmp_path: Path) -> None:
    told = command(
        *("export", "vit_test", "--output", str(tmp_path / "a.onnx")),
        *("--set", "image_size=16,24", "--set", "channels=4"),
    )
    assert (told.code, told.err) == (0, "")
    assert "any number of images, 4 x 16 x 24, normalised images" in told.out


def test_a_size_that_fits_the_other_changes_need_not_fit_the_name(
    command: Command, tmp_path: Path
) -> None:
    told = command(
        *("export", "vit_ti16", "--output", str(tmp_path / "a.onnx"), "--image-size", "96x168"),
        *("--set", "patch_size=12", "--set", "depth=1", "--set", "classes=5"),
    )
    assert (told.code, told.err) == (0, "")
    assert "any number of images, 3 x 96 x 168, normalised images" in told.out
