"""Which images a figure is about: classes without test images, folders without a test split."""

import json
from pathlib import Path

import pytest

from command import Command
from data.picture_files import encoded, picture

TINY = ("--set", "model=vit_test", "--batch-size", 4, "--steps", 1, "--set", "hold_out=0")


def fill(folder: Path, *labels: str, seed: int) -> Path:
    for number, label in enumerate(labels):
        (folder / label).mkdir(parents=True)
        for image in range(5):
            content = encoded(picture(100 * seed + 10 * number + image), "PNG")
            (folder / label / f"{image}.png").write_bytes(content)
    return folder


def test_a_class_may_go_unjudged_if_that_is_meant(command: Command, tmp_path: Path) -> None:
    data, run = tmp_path / "data", tmp_path / "run"
    fill(data / "train", "cat", "dog", "owl", seed=1)
    fill(data / "val", "cat", "dog", seed=2)
    told = "test of data has no images of owl: not evaluated"
    outcome = command("train", "--data", data, "--out", run, *TINY, "--set", "judge_all=false")
    assert outcome.code == 0, outcome.err
    assert "10 images" in outcome.out
    assert f"next:   vitlab predict {run} IMAGE|FOLDER\n" in outcome.out
    assert told in outcome.out
    assert f"{told}." in (run / "report.html").read_text()
    plan = json.loads((run / "config.json").read_text())
    assert plan["command"].endswith(
        "--steps 1 --set model=vit_test --set hold_out=0 --set judge_all=false --batch-size 4 "
        "--set precision=float32"
    )
    judged = command("evaluate", run, "--data", data)
    assert judged.code == 0, judged.err
    assert f"not evaluated      {told}" in judged.out
    assert (
        f"images             15 (train of {data.name})"
        in command("evaluate", run, "--data", data, "--split", "train").out
    )


@pytest.mark.parametrize("split", ["test", "all"])
def test_of_a_folder_without_splits_a_fifth_is_judged_and_said_so(
    command: Command, tmp_path: Path, split: str
) -> None:
    data, run = fill(tmp_path / "data", "cat", "dog", seed=3), tmp_path / "run"
    outcome = command("train", "--data", data, "--out", run, *TINY)
    assert outcome.code == 0, outcome.err
    note = "A fifth of data is kept for testing, since it has no test images apart"
    assert note in outcome.out
    assert note in (run / "report.html").read_text()
    judged = command("evaluate", run, "--data", data, "--split", split)
    counts = {"test": "2 (test of data, a fifth of it; --split all", "all": "10 (all of data)"}
    assert f"images             {counts[split]}" in judged.out, judged
