"""Commands on iPhone photographs (HEIC), with and without their decoder."""

import json
import sys
from pathlib import Path

import pytest

from command import Command
from data.heic_files import photographs
from jobs.classifiers import saved_model


def test_train_and_predict_count_them(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    photographs(tmp_path / "set", heics=3, others=4)
    model = saved_model(tmp_path / "model.safetensors")
    output = tmp_path / "out.jsonl"
    outcome = command("predict", model, tmp_path / "set", "--output", output)
    assert (outcome.code, len(output.read_text().splitlines())) == (0, 14)
    assert all(json.loads(line)["error"] is None for line in output.read_text().splitlines())

    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    outcome = command("predict", model, tmp_path / "set", "--output", output, "--overwrite")
    assert outcome.code == 3
    assert "6 images: " in outcome.err
    assert "pip install 'vitlab[heif]'" in outcome.err
    outcome = command("train", "--data", tmp_path / "set", "--steps", 1, "--out", tmp_path / "run")
    assert outcome.code == 2
    assert "6 of 14 images cannot be read" in outcome.err
    assert "a HEIC photograph, which needs pip install 'vitlab[heif]'" in outcome.err
