"""`vitlab train` and `evaluate` on CSV files: what is decided is said, mistakes are one line."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from command import Command
from vitlab import load, load_weights, save_weights

CELLS = {
    "label": ["red", "blue"],
    "labels": ["red;blue", "red", "", "blue"],
    "value": ["1.5", "-2", "7"],
}


def table(folder: Path, header: str) -> Path:
    """Thirty small pictures and a CSV of one column about them."""
    draw, rows = np.random.default_rng(0), [f"path,{header}"]
    for number in range(30):
        Image.fromarray(draw.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(
            folder / f"{number}.png"
        )
        cells = CELLS[header]
        rows.append(f"{number}.png,{cells[number % len(cells)]}")
    file = folder / "table.csv"
    file.write_text("\n".join(rows))
    return file


FAST = ["--steps", "2", "--batch-size", "8"]
SMALL = [part for s in ("model=vit_test", "evaluations=1") for part in ("--set", s)]


@pytest.mark.parametrize(
    ("header", "decided", "figure", "shown"),
    [
        ("label", "single-label, 2 classes", "accuracy", "balanced accuracy"),
        ("labels", "multi-label, 2 labels", "mean average precision", "all labels right"),
        ("value", "holds a number: regression", "mean absolute error", "rank correlation"),
    ],
)
def test_from_a_table_to_figures(
    command: Command, tmp_path: Path, header: str, decided: str, figure: str, shown: str
) -> None:
    file, run = table(tmp_path, header), tmp_path / "run"
    done = command("train", "--data", str(file), "--out", str(run), *FAST, *SMALL)
    assert done.code == 0, done.err
    assert decided in done.out.splitlines()[0]
    assert f"test {figure} " in done.out
    judged = command("evaluate", str(run), "--data", str(file))
    assert judged.code == 0, judged.err
    assert figure in judged.out
    assert shown in judged.out
    exact = json.loads(command("evaluate", str(run), "--data", str(file), "--json").out)
    assert exact["images"] == 6
    assert exact.get("task", "single-label") == load_weights(run / "bundle").source.task
    save_weights(load_weights(run / "bundle"), tmp_path / "again.safetensors")
    copied = command("evaluate", str(tmp_path / "again.safetensors"), "--data", str(file))
    assert copied.out == judged.out
    asked = command("predict", str(run), str(tmp_path / "0.png"), str(tmp_path / "1.png"))
    assert asked.code == 0, asked.err
    for line, prediction in zip(
        asked.out.splitlines(),
        load(run).predict([tmp_path / "0.png", tmp_path / "1.png"]),
        strict=True,
    ):
        told = prediction.answers[: 1 if header == "label" else None]
        assert line.split("\t") == [str(prediction.path), *told]


def test_options_of_balance_and_channels(command: Command, tmp_path: Path) -> None:
    file, run = table(tmp_path, "label"), tmp_path / "run"
    options = ["--balance", "sampling", "--channels", "1"]
    done = command("train", "--data", str(file), "--out", str(run), *FAST, *SMALL, *options)
    assert done.code == 0, done.err
    plan = json.loads((run / "config.json").read_text())
    assert plan["train"]["balance"] == "sampling"
    assert plan["model"]["channels"] == 1
    assert "--balance sampling --set model.channels=1" in plan["command"]


def test_mistakes_are_one_line_and_leave_nothing(command: Command, tmp_path: Path) -> None:
    file, run = table(tmp_path, "label"), tmp_path / "run"
    arguments = ["train", "--data", str(file), "--out", str(run), *SMALL]
    mistake = command(*arguments, "--balance", "some").mistake
    assert mistake == "key 'balance': found 'some', expected one of none, loss, sampling"
    (tmp_path / "3.png").unlink()
    told = f"{file}, line 5: no such file: 3.png; valid: files, by paths that begin in {tmp_path}"
    assert command(*arguments).mistake == told
    file.write_text("path,name\n1.png,cat\n")
    assert "hold no labels; valid: label" in command(*arguments).mistake
    assert not run.exists()
