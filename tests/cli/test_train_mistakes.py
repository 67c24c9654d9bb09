"""`vitlab train` as somebody uses it who gets things wrong, or has odd images."""

import json
from pathlib import Path

import pytest

from command import Command
from data.picture_files import encoded, picture, write_odd

TINY = ("--set", "model=vit_test")


def sets(*texts: str) -> list[str]:
    return [word for text in texts for word in ("--set", text)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--minutes", "0"], "budget 0.0 minutes is not positive"),
        (["--minutes", "-3"], "budget -3.0 minutes is not positive"),
        (["--minutes", "nan"], "'budget': found nan, expected a finite number"),
        (["--epochs", "inf"], "'budget': found inf, expected a finite number"),
        (["--steps", "0"], "budget 0.0 steps is not positive"),
        (["--steps", "1.5"], "--steps"),
        (["--steps", "5", "--epochs", "1"], "--epochs and --steps: a run has one budget"),
        (["--batch-size", "0"], "'0' is neither a number of images nor auto"),
        (["defualt"], "unknown recipe 'defualt'; did you mean default"),
        (sets("model=vit_tets"), "vit_test"),
        (sets("model.classes=5"), "model.classes 5; sample has 10"),
        (sets("model.channels=1"), "model.channels 1; sample has 3"),
        (sets("model.patch_size=5"), "patch"),
        (sets("model.wdith=8"), "did you mean width"),
        (sets("model.=8"), "unknown key"),
        (sets("optimizer.lrr=1"), "unknown key 'optimizer.lrr'"),
        (sets("optimizer=adamw"), "key 'optimizer': found 'adamw'"),
        (sets("optimizer.lr=nan"), "key 'optimizer.lr': found 'nan'"),
        (sets("optimizer.weight_decay=NaN"), "key 'optimizer.weight_decay': found 'NaN'"),
        (sets("optimizer.lr=0"), "lr 0.0 is not positive"),
        (sets("schedule.warmup=Infinity"), "key 'schedule.warmup': found 'Infinity'"),
        (sets("changes.width=64"), "'changes' is"),
        (sets("batch_size=1.5"), "key 'batch_size': found '1.5', expected int"),
        (sets("batch_size="), "key 'batch_size': found '', expected int"),
        (sets("budget_in=days"), "one of epochs, steps, minutes"),
        (sets("hold_out=1"), "hold_out 1.0 is not in [0, 1)"),
        (sets("augment.repeats=3"), "batch_size 100 is not a positive multiple of repeats 3"),
        (sets("patience=2", "hold_out=0"), "patience needs hold_out > 0"),
        (sets("nonsense"), "'nonsense' is not key=value"),
        (["--data", "cifar11"], "did you mean cifar10"),
        (["--data", "no/such"], "no/such: no such folder"),
        (["--data", __file__], "is not a folder"),
        (["--resume"], "no run to resume"),
    ],
)
def test_mistakes_are_one_line_and_nothing_is_written(
    command: Command, tmp_path: Path, arguments: list[str], message: str
) -> None:
    data = [] if "--data" in arguments or "--resume" in arguments else ["--data", "sample"]
    outcome = command("train", "--out", tmp_path / "run", *data, *arguments)
    assert message in outcome.mistake
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("held_out", ["0", "0.1"])
def test_a_run_that_diverges_at_once_names_step_and_remedy(
    command: Command, tmp_path: Path, held_out: str
) -> None:
    settings = sets("optimizer.lr=1e30", "optimizer.muon_lr=1e30", f"hold_out={held_out}")
    out = tmp_path / "run"
    arguments = ("--data", "digits", "--steps", 2, "--set", "evaluations=2", "--out", out)
    outcome = command("train", *arguments, *TINY, *settings)
    assert outcome.code == 2
    (line,) = outcome.err.splitlines()
    assert line.startswith(f"error: diverged at step {1 if held_out == '0.1' else 2}: ")
    assert "try a lower learning rate (--set optimizer.lr=…)" in line


def test_sizes_that_are_valid_together(command: Command, tmp_path: Path) -> None:
    settings = sets("model=vit_ti16", "model.depth=1", "model.image_size=32")
    arguments = ("--data", "digits", "--steps", 1, "--out", tmp_path / "run")
    assert command("train", *arguments, *settings).code == 0
    assert json.loads((tmp_path / "run" / "config.json").read_text())["model"]["image_size"] == 32


def test_data_must_be_named(command: Command, tmp_path: Path) -> None:
    for nothing in ((), ("--data", "")):
        told = command("train", "--out", tmp_path / "run", *nothing)
        assert "no data; pass --data" in told.mistake
    assert not list(tmp_path.iterdir())


def test_places_where_no_run_can_be(command: Command, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("mine")
    for place, message in (
        ("file", "is a file; choose a folder"),
        ("file/below", "cannot be written"),
        ("full", "is not empty and holds no run"),
    ):
        outcome = command("train", "--data", "sample", "--out", tmp_path / place, *TINY)
        assert message in outcome.mistake
    assert (tmp_path / "file").read_text() == "mine"
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["thesis.tex"]


def test_images_of_every_kind_and_size(command: Command, tmp_path: Path) -> None:
    """Grey, 16 bits, palettes, transparency, CMYK, one pixel, a strip; all of them are images."""
    for number, label in enumerate(("ein Wort", "日本 🐈")):
        (tmp_path / "data" / label).mkdir(parents=True)
        write_odd(tmp_path / "data" / label)
        for extra in range(12):
            path = tmp_path / "data" / label / f"{extra}.jpg"
            path.write_bytes(encoded(picture(50 * number + extra), "JPEG"))
    run = tmp_path / "run"
    outcome = command(
        *("train", "--data", tmp_path / "data", "--out", run, "--steps", 2, *TINY),
        *("--batch-size", 500, "--set", "evaluations=1000000000", "--json"),
    )
    assert outcome.code == 0, outcome.err
    assert json.loads((run / "broken.json").read_text()) == {}
    labels = json.loads((run / "bundle" / "config.json").read_text())["labels"]
    assert labels == ["ein Wort", "日本 🐈"]
    assert "日本 🐈" in (run / "report.html").read_text()


def test_the_smallest_folder(command: Command, tmp_path: Path) -> None:
    """Two classes of two images: too few for train, validation and test; enough for two parts."""
    for number, label in enumerate(("a", "b")):
        (tmp_path / "data" / "train" / label).mkdir(parents=True)
        for image in range(2):
            path = tmp_path / "data" / "train" / label / f"{image}.png"
            path.write_bytes(encoded(picture(2 * number + image), "PNG"))
    out = ("--out", tmp_path / "run", "--steps", 2, *TINY)
    told = command("train", "--data", tmp_path / "data" / "train", *out).mistake
    assert "hold_out=0" in told
    assert "at least 3 of each class" in told
    assert not (tmp_path / "run").exists()
    done = command("train", "--data", tmp_path / "data", *out, "--set", "hold_out=0", "--json")
    assert done.code == 0, done.err
    assert "train_accuracy" in json.loads(done.out)
