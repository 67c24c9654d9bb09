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


def test_predict_names_other_formats_with_the_remedy(command: Command, tmp_path: Path) -> None:
    model = saved_model(tmp_path / "model.safetensors")
    photographs(tmp_path / "set", heics=0, others=1)
    contents = {"a.pdf": b"%PDF-1.7", "b.dng": b"raw", "c.NEF": b"raw", "d.jxl": b"\xff\x0a"}
    for name, content in contents.items():
        (tmp_path / "set" / name).write_bytes(content * 9)
    outcome = command("predict", model, tmp_path / "set", "--output", tmp_path / "out.csv")
    assert outcome.code == 3
    assert outcome.err.splitlines()[-1] == (
        "files in formats that are not read: 1 PDF, 1 raw, 1 Nikon raw, 1 JPEG XL; "
        "convert them to JPEG or PNG"
    )
    mistake = command("predict", model, tmp_path / "set" / "b.dng").mistake
    assert "b.dng: not an image of a known format" in mistake
    assert mistake.endswith("not read: 1 raw; convert them to JPEG or PNG")
