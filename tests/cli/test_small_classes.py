"""Small classes in a split that vitlab makes: on every side, or the run stops and says why."""

import json
from pathlib import Path
from typing import Any

import pytest

from command import Command
from data.picture_files import encoded, picture

TINY = ("--set", "model=vit_test", "--batch-size", 4, "--steps", 1)


def fill(folder: Path, copies: int = 1, **classes: int) -> Path:
    """Class folders with so many different images, each `copies` times."""
    for number, (label, count) in enumerate(classes.items()):
        (folder / label).mkdir(parents=True)
        for image in range(count * copies):
            content = encoded(picture(1000 * number + image // copies), "PNG")
            (folder / label / f"{image}.png").write_bytes(content)
    return folder


def sides(command: Command, data: Path, out: Path, *more: object) -> dict[str, Any]:
    done = command("train", "--data", data, "--out", out, *TINY, *more, "--json")
    assert done.code == 0, done.err
    found: dict[str, Any] = json.loads(done.out)["counts"]
    return found


@pytest.mark.parametrize("more", [(), ("--balance", "sampling"), ("--balance", "loss")])
def test_every_class_is_on_every_side(
    command: Command, tmp_path: Path, more: tuple[str, ...]
) -> None:
    data = fill(tmp_path / "data", cat=20, dog=3, owl=4)
    counts = sides(command, data, tmp_path / "run", *more)
    assert set(counts) == {"train", "validation", "test"}
    assert all(found["least_per_class"] == 1 and not found["absent"] for found in counts.values())
    assert sum(found["images"] for found in counts.values()) == 27
    report = (tmp_path / "run" / "report.html").read_text()
    assert "1 to 4 per class" in report  # of the test images
    judged = json.loads(command("evaluate", tmp_path / "run", "--data", data, "--json").out)
    assert judged["counts"] == counts["test"]


def test_copies_are_one_image_and_stay_together(command: Command, tmp_path: Path) -> None:
    data = fill(tmp_path / "data", copies=2, cat=10, dog=3)
    counts = sides(command, data, tmp_path / "run")
    assert all(found["least_per_class"] == 2 for found in counts.values())


@pytest.mark.parametrize(
    ("classes", "copies", "more", "message"),
    [
        ({"cat": 20, "dog": 2}, 1, (), "2 of dog; valid: at least 3 of each class"),
        ({"cat": 20, "dog": 2}, 3, (), "2 of dog; valid: at least 3 of each class"),
        ({"cat": 20, "dog": 1}, 1, ("--set", "hold_out=0"), "1 of dog; valid: at least 2"),
        ({"cat": 9, "dog": 1, "owl": 2}, 1, (), "1 of dog, 2 of owl; valid: at least 3"),
    ],
)
def test_too_few_images_stop_the_run(
    command: Command,
    tmp_path: Path,
    classes: dict[str, int],
    copies: int,
    more: tuple[str, ...],
    message: str,
) -> None:
    data = fill(tmp_path / "data", copies, **classes)
    out = ("--out", tmp_path / "run", *TINY, *more)
    assert message in command("train", "--data", data, *out).mistake.replace("\n", " ")
    assert not (tmp_path / "run").exists()
    if not more:
        checked = command("data", "check", data)
        assert "too small to be split: training needs at least 3" in checked.out
        assert "Nothing found that harms training" not in checked.out


def test_a_class_that_is_not_evaluated_is_named(command: Command, tmp_path: Path) -> None:
    data, run = fill(tmp_path / "data", cat=20, dog=1), tmp_path / "run"
    done = command("train", "--data", data, "--out", run, *TINY, "--set", "judge_all=false")
    assert done.code == 0, done.err
    for split in ("validation", "test"):
        told = f"{split} of data has no images of dog: not evaluated"
        assert f"warning: {told}" in done.out
        assert f"{told}." in (run / "report.html").read_text()


def test_labels_of_a_table_are_on_every_side_where_possible(
    command: Command, tmp_path: Path
) -> None:
    fill(tmp_path, x=30)
    rows = [f"x/{i}.png,{'sky' if i % 2 else 'sea'}" for i in range(27)]
    rows += [f"x/{i}.png,sky;{'fox' if i < 29 else 'elk'}" for i in (26, 27, 28, 29) if i > 26]
    (tmp_path / "data.csv").write_text("\n".join(["path,labels", *rows, ""]))
    counts = sides(command, tmp_path / "data.csv", tmp_path / "run", "--set", "hold_out=0")
    assert counts["train"]["absent"] == []
    assert counts["test"]["absent"] == ["elk"]  # one image, which is learnt from


def test_few_shots_need_every_class_in_the_test_images(command: Command, tmp_path: Path) -> None:
    data = fill(tmp_path / "data", cat=20, dog=1)
    told = command("fewshot", "cifar10", "--data", data, "--shots", 1, "--draws", 1).mistake
    assert "1 of dog; valid: at least 2 of each class" in told
