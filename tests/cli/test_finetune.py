"""`vitlab finetune` on a user's own folder, from its first lines to predictions."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from command import Command
from data.colours import COLOURS, write_colours
from jobs.classifiers import LABELS, saved_model
from vitlab import create_model
from vitlab.errors import Interrupted
from vitlab.jobs import train as job
from vitlab.training import batch_size
from vitlab.weights.bundle import save_bundle

KINDS = ("HEIC", "PNG", "JPEG")


def mixed_folder(root: Path) -> Path:
    """Three HEIC, PNG and JPEG photographs of each colour."""
    heif = pytest.importorskip("pillow_heif")
    random = np.random.default_rng(0)
    for channel, colour in enumerate(reversed(COLOURS)):
        (root / colour).mkdir(parents=True)
        for number in range(9):
            pixels = random.integers(0, 100, (64, 72, 3), dtype=np.uint8)
            pixels[..., channel] += 150
            image, kind = Image.fromarray(pixels), KINDS[number % 3]
            path = root / colour / f"IMG_{number}.{kind}"
            if kind == "HEIC":
                heif.from_pillow(image).save(path)
            else:
                image.save(path, kind)
    return root


def test_a_folder_of_mixed_formats_is_learned_and_predicted(
    command: Command, tmp_path: Path
) -> None:
    folder = mixed_folder(tmp_path / "photos")
    weights = saved_model(tmp_path / "weights.safetensors")
    checked = json.loads(command("data", "check", folder, "--json").out)
    assert checked["images"] == 27
    outcome = command(
        *("finetune", "--from", weights, "--data", folder, "--out", tmp_path / "run"),
        *("--steps", 12, "--new-head", "--set", "optimizer.lr=0.003"),
    )
    assert outcome.code == 0, outcome.err
    output = tmp_path / "found.jsonl"
    assert command("predict", tmp_path / "run", folder, "--output", output).code == 0
    found = [json.loads(line) for line in output.read_text().splitlines()]
    assert len(found) == 27
    assert {record["error"] for record in found} == {None}
    right = [Path(record["path"]).parent.name == record["label"] for record in found]
    assert sum(right) > 22


def test_the_first_lines_do_not_contradict_each_other(command: Command, tmp_path: Path) -> None:
    weights = saved_model(tmp_path / "weights.safetensors")
    data = write_colours(tmp_path / "data", {"train": 6, "test": 2})
    assert COLOURS == LABELS
    arguments = ("finetune", "--from", weights, "--data", data, "--steps", 1)
    lines = command(*arguments, "--out", tmp_path / "known").out.splitlines()
    opening = lines[: next(i for i, line in enumerate(lines) if ": 1 step of " in line)]
    some = "blue, green, red"
    assert f"3 of 3 classes are known to the weights by name ({some}): kept" in opening
    for word in ("nothing", "zero", "new head"):
        assert not [line for line in opening if word in line]
    assert any(line.startswith("step 0 of 1: ") for line in lines)  # the head is evaluated as it is
    new = command(*arguments, "--new-head", "--out", tmp_path / "new").out
    assert "known to the weights" not in new
    assert "step 0 of 1: " not in new


def test_an_interrupted_run_suggests_how_to_go_on(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fit(*_: object, **__: object) -> None:
        raise Interrupted(2, 1, 2)

    weights = saved_model(tmp_path / "weights.safetensors")
    data = write_colours(tmp_path / "data", {"train": 6, "test": 2})
    run = tmp_path / "run"
    with monkeypatch.context() as patched:
        patched.setattr(job, "fit", fit)
        outcome = command("finetune", "--from", weights, "--data", data, "--out", run, "--steps", 2)
    assert outcome.code == 130
    resume = ("finetune", "--resume", "--out", run)
    last = outcome.err.splitlines()[-1]
    assert last.endswith("; continue: " + " ".join(map(str, ("vitlab", *resume))))
    assert command(*resume).code == 0
    assert (run / "bundle" / "model.safetensors").is_file()


def test_training_from_scratch_does_not_shrink_photographs_to_32_pixels(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fit(*_: object, **__: object) -> None:
        raise Interrupted(2, 0, 1)

    for colour in COLOURS:
        (tmp_path / "data" / colour).mkdir(parents=True)
        for number in range(8):
            pixels = np.random.default_rng(number).integers(256, size=(60, 80, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "data" / colour / f"{number}.jpg")
    monkeypatch.setattr(job, "fit", fit)
    monkeypatch.setattr(batch_size, "free_bytes", lambda: 2**29)
    run = tmp_path / "run"
    outcome = command("train", "--data", tmp_path / "data", "--out", run, "--steps", 1)
    assert outcome.code == 130, outcome.err
    plan = json.loads((run / "config.json").read_text())
    assert plan["model"]["image_size"] == 48
    chosen = plan["train"]["batch_size"]  # larger images may not fit in the recipe's number
    assert chosen < 100
    assert f"batch size {chosen}, the largest up to 100 that fits" in outcome.out
    assert "shorter side of 60 pixels (median) are resized to 48 x 48" in outcome.out
    assert "vitlab finetune --from vit_ti16.deit --download" in outcome.out


def test_a_class_is_named_as_people_say_it(command: Command, tmp_path: Path) -> None:
    model = create_model("vit_test", image_size=16, classes=2)
    labels = ("tench (n01440764)", "cassette player (n02979186)")
    save_bundle(tmp_path / "fish", model, preprocessing=None, labels=labels)
    image = tmp_path / "a.png"
    Image.fromarray(np.zeros((20, 20, 3), dtype=np.uint8)).save(image)
    asked = ("explain", tmp_path / "fish", image, "--preprocessing", "half", "--json")
    for name in ("tench", "n01440764", labels[0]):
        (found,) = json.loads(command(*asked, "--class", name).out)["images"]
        assert found["class"] == labels[0]
    assert "tenc" in command(*asked, "--class", "tenc").mistake
