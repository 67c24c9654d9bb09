"""`vitlab evaluate`: the same numbers as the library, on data of every kind."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from command import Command
from vitlab import Preprocessing, VisionTransformer, create_model, load, save_weights
from vitlab.data.datasets import open_data
from vitlab.data.images import FileSet, survey_of
from vitlab.evaluation.calibration import fit_temperature
from vitlab.jobs import evaluate as evaluation
from vitlab.jobs.evaluate import evaluate
from vitlab.jobs.plan import Plan, write_plan, write_survey
from vitlab.jobs.training_run import open_images
from vitlab.training.config import TrainConfig
from vitlab.weights.bundle import save_bundle
from vitlab.weights.source import WeightSource

LABELS = ("blue", "green", "red")
COUNTS = {"train": 11, "test": 7}
"""Images of each class."""


@pytest.fixture
def model() -> VisionTransformer:
    torch.manual_seed(0)
    made = create_model("vit_test", classes=3)
    assert isinstance(made, VisionTransformer)
    assert made.head is not None
    torch.nn.init.normal_(made.head.weight)
    made.source = WeightSource(
        format="vitlab",
        path=Path("vit_test"),
        preprocessing=Preprocessing(size=(32, 32), mean=(0.5,) * 3, std=(0.5,) * 3),
        labels=LABELS,
    )
    return made


@pytest.fixture
def weights(model: VisionTransformer, tmp_path: Path) -> Path:
    save_weights(model, tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """`train/` and `test/` of three colours, with noise that tells the images apart."""
    random = np.random.default_rng(0)
    for split, count in COUNTS.items():
        for number, label in enumerate(LABELS):
            place = tmp_path / "colours" / split / label
            place.mkdir(parents=True)
            for i in range(count):
                pixels = random.integers(0, 120, (37, 41, 3), dtype=np.uint8)
                pixels[..., 2 - number] += 120
                Image.fromarray(pixels).save(place / f"{i}.png")
    return tmp_path / "colours"


def expected(weights: Path, folder: Path, split: str = "test") -> float:
    """Accuracy, image by image, as `predict` sees it."""
    classifier = load(weights)
    files = sorted((folder / split).glob("*/*.png"))
    found = classifier.predict(files, batch_size=1)
    return sum(p.label == path.parent.name for p, path in zip(found, files, strict=True)) / len(
        files
    )


def measure(command: Command, *arguments: object) -> dict[str, Any]:
    outcome = command("evaluate", *arguments, "--json")
    assert outcome.code == 0, outcome.err
    found: dict[str, Any] = json.loads(outcome.out)
    return found


@pytest.mark.parametrize("split", ["test", "train"])
@pytest.mark.parametrize("batch_size", [1, 4, 64])
def test_every_image_counts_once(
    command: Command, weights: Path, folder: Path, split: str, batch_size: int
) -> None:
    found = measure(
        command, weights, "--data", folder, "--split", split, "--batch-size", batch_size
    )
    assert found["images"] == 3 * COUNTS[split]
    assert found["accuracy"] == expected(weights, folder, split)
    assert np.sum(found["confusion"]) == 3 * COUNTS[split]
    assert found["broken"] == {}


def test_people_see_a_summary_and_classes(command: Command, weights: Path, folder: Path) -> None:
    outcome = command("evaluate", weights, "--data", folder)
    assert outcome.code == 0, outcome.err
    lines = outcome.out.splitlines()
    assert lines[0].split(maxsplit=1)[1] == "21 (test of colours)"
    assert f"{expected(weights, folder):.2%} (95% interval" in lines[1]
    assert "calibration error" in outcome.out
    assert "top-5" not in outcome.out
    for label in LABELS:
        assert any(line.startswith(label) and line.endswith(" 7") for line in lines)


def test_a_temperature_is_reported_if_it_helps(
    command: Command, weights: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plain = measure(command, weights, "--data", folder)
    held_out = measure(command, weights, "--data", folder, "--split", "validation")
    assert 0 < held_out["images"] < 3 * COUNTS["train"]
    found = measure(command, weights, "--data", folder, "--temperature")
    assert found == plain
    page = tmp_path / "page.html"
    shown = command("evaluate", weights, "--data", folder, "--temperature", "--output", page)
    assert "temperature        none: no improvement of the loss is certain" in shown.out
    assert "Temperature: none: no improvement" in page.read_text()

    monkeypatch.setattr(evaluation, "helpful_temperature", fit_temperature)
    found = measure(command, weights, "--data", folder, "--temperature")
    assert found["scaled"]["temperature"]["images"] == held_out["images"]
    assert found["accuracy"] == plain["accuracy"]


def test_the_hold_out_of_a_run_is_its_own(
    command: Command, model: VisionTransformer, folder: Path, tmp_path: Path
) -> None:
    bundle = tmp_path / "run" / "bundle"
    bundle.mkdir(parents=True)
    save_weights(model, bundle / "model.safetensors")
    (tmp_path / "run" / "metrics.jsonl").touch()
    for share, images in ((0.5, 16), (0.2, 7)):
        write_plan(tmp_path / "run", plan(hold_out=share, seed=3))
        for path in (bundle, bundle / "model.safetensors", tmp_path / "run"):
            found = measure(command, path, "--data", folder, "--split", "validation")
            assert found["images"] == images
    write_plan(tmp_path / "run", plan(hold_out=0.0))
    mistake = command("evaluate", bundle, "--data", folder, "--split", "validation").mistake
    assert "held no images out" in mistake


def test_without_its_run_nobody_knows_what_was_held_out(
    command: Command, model: VisionTransformer, folder: Path, tmp_path: Path
) -> None:
    save_bundle(
        tmp_path / "b",
        model,
        preprocessing=model.source.require_preprocessing(),
        labels=LABELS,
        metrics={},
        provenance={"data": os.fspath(folder)},
    )
    asked = ("evaluate", tmp_path / "b", "--data", folder)
    for more in (("--split", "validation"), ("--temperature",)):
        assert "and its run, which lists the held-out images" in command(*asked, *more).mistake
    assert command(*asked).code == 0


def test_the_hold_out_of_a_part_is_of_that_part(
    model: VisionTransformer, folder: Path, tmp_path: Path
) -> None:
    bundle = tmp_path / "run" / "bundle"
    bundle.mkdir(parents=True)
    save_weights(model, bundle / "model.safetensors")
    (tmp_path / "run" / "metrics.jsonl").touch()
    next((folder / "train" / "green").iterdir()).write_text("no image")
    config = TrainConfig(hold_out=0.5, seed=3, images_per_class=6)
    train, held_out = open_images(open_data(folder), config, None)
    assert isinstance(held_out, FileSet)
    for data, survey in ((os.fspath(folder), survey_of(train)), ("elsewhere", None)):
        write_plan(tmp_path / "run", replace(plan(), train=config, data=data))
        write_survey(tmp_path / "run", survey)
        found = evaluate(bundle, folder, split="validation")
        assert isinstance(found.data, FileSet)
        assert set(found.data.paths) == set(held_out.paths)


def plan(**changes: object) -> Plan:
    config = TrainConfig(**changes)
    return Plan(recipe="default", data="colours", train=config, model={}, steps=1, command="")


def test_mirror_images_are_told_beside_and_never_instead(
    command: Command, weights: Path, folder: Path, tmp_path: Path
) -> None:
    plain = measure(command, weights, "--data", folder)
    assert plain["flip"] is None
    both = measure(command, weights, "--data", folder, "--flip", "--temperature")
    flipped = both.pop("flip")
    assert (flipped["scaled"], both.pop("scaled")) == (None, None)
    assert both == {key: value for key, value in plain.items() if key not in ("flip", "scaled")}
    assert flipped["images"] == plain["images"]
    assert flipped["loss"] != plain["loss"]
    asked = "evaluate", weights, "--data", folder
    shown, page = command(*asked).out, tmp_path / "page.html"
    beside = command(*asked, "--flip", "--output", page).out
    rows = [line for line in beside.splitlines() if line.startswith("with mirror images")]
    assert len(rows) == 1
    assert f"accuracy {flipped['accuracy']:.2%} (" in rows[0]
    accuracy = next(line for line in shown.splitlines() if line.startswith("accuracy"))
    assert accuracy.split() in [line.split() for line in beside.splitlines()]
    assert "with mirror images" not in shown
    html = page.read_text()
    assert f"its mirror image: accuracy {flipped['accuracy']:.4g}, loss" in html
    assert f"vitlab evaluate {weights} --data {folder} --split test --flip" in html


def test_a_page_can_be_written(
    command: Command, weights: Path, folder: Path, tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    outcome = command("evaluate", weights, "--data", folder, "--output", page, "--temperature")
    assert outcome.code == 0, outcome.err
    assert outcome.out.endswith(f"report: {page}\n")
    html = page.read_text()
    assert f"{expected(weights, folder):.1%}" in html
    assert "data:image/png;base64," in html
    assert f"vitlab evaluate {weights} --data {folder} --split test --temperature" in html


def test_broken_images_are_named_and_not_counted(
    command: Command, weights: Path, folder: Path
) -> None:
    broken = folder / "test" / "red" / "broken.png"
    broken.write_bytes(b"no image")
    found = measure(command, weights, "--data", folder)
    assert found["images"] == 21
    assert list(found["broken"]) == [str(broken)]
    assert (
        "not readable       1 (not counted)" in command("evaluate", weights, "--data", folder).out
    )


def test_classes_are_matched_by_name(
    command: Command, model: VisionTransformer, weights: Path, folder: Path, tmp_path: Path
) -> None:
    order = (2, 0, 1)
    assert model.head is not None
    shuffled = torch.nn.Parameter(model.head.weight[list(order)].detach().clone())
    model.head.weight = shuffled
    model.source = replace(model.source, labels=tuple(LABELS[i] for i in order))
    save_weights(model, tmp_path / "shuffled.safetensors")
    again = measure(command, tmp_path / "shuffled.safetensors", "--data", folder)
    plain = measure(command, weights, "--data", folder)
    assert again["accuracy"] == plain["accuracy"]
    assert [item["label"] for item in again["classes"]] == ["red", "blue", "green"]


def test_data_of_some_of_the_models_classes(
    command: Command, folder: Path, weights: Path, tmp_path: Path
) -> None:
    few = tmp_path / "few"
    few.mkdir()
    for split in COUNTS:
        (few / split).mkdir()
        for label in ("green", "red"):
            (folder / split / label).rename(few / split / label)
    found = measure(command, weights, "--data", few)
    assert [item["support"] for item in found["classes"]] == [0, 7, 7]


def test_a_model_without_labels_takes_those_of_the_data(
    command: Command, model: VisionTransformer, folder: Path, tmp_path: Path
) -> None:
    model.source = replace(model.source, labels=None)
    save_weights(model, tmp_path / "silent.safetensors")
    found = measure(command, tmp_path / "silent.safetensors", "--data", folder)
    assert [item["label"] for item in found["classes"]] == list(LABELS)


def saved(model: VisionTransformer, path: Path, **source: object) -> Path:
    model.source = replace(model.source, **source)
    save_weights(model, path)
    return path


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--split", "tets"], "unknown split 'tets'; did you mean test"),
        (["--split", "train", "--temperature"], "valid: split 'test'"),
        (["--batch-size", "0"], "--batch-size"),
        (["--output", "no/where.html"], "no/where.html: there is no folder"),
    ],
)
def test_wrong_options(
    command: Command, weights: Path, folder: Path, arguments: list[str], message: str
) -> None:
    assert message in command("evaluate", weights, "--data", folder, *arguments).mistake


def test_data_is_needed(command: Command, weights: Path) -> None:
    assert "--data" in command("evaluate", weights).mistake


def test_no_test_split(command: Command, weights: Path, folder: Path) -> None:
    (folder / "test").rename(folder.parent / "elsewhere")
    assert "has no test split" in command("evaluate", weights, "--data", folder).mistake


def test_other_classes(
    command: Command, model: VisionTransformer, folder: Path, tmp_path: Path
) -> None:
    path = saved(model, tmp_path / "a.safetensors", labels=("cyan", "green", "red"))
    mistake = command("evaluate", path, "--data", folder).mistake
    assert "class 'blue', for which the model has no class" in mistake
    assert "cyan, green, red" in mistake


def test_classes_that_are_only_numbered_are_taken_in_order(
    command: Command, model: VisionTransformer, folder: Path, tmp_path: Path
) -> None:
    found = [
        command("evaluate", path, "--data", folder, "--json").out
        for path in (
            saved(model, tmp_path / "a.safetensors", labels=None),
            saved(model, tmp_path / "b.safetensors", labels=("0", "1", "2")),
        )
    ]
    accuracies = [json.loads(told)["accuracy"] for told in found]
    assert accuracies[0] == accuracies[1]


def test_another_number_of_classes(
    command: Command, model: VisionTransformer, folder: Path, tmp_path: Path
) -> None:
    path = saved(model, tmp_path / "a.safetensors", labels=None)
    for split in COUNTS:
        (folder / split / "blue").rename(tmp_path / split)
    mistake = command("evaluate", path, "--data", folder).mistake
    assert "has 2 classes, the model 3 without names" in mistake


def test_a_head_that_was_not_trained(
    command: Command, model: VisionTransformer, folder: Path, tmp_path: Path
) -> None:
    assert model.head is not None
    torch.nn.init.zeros_(model.head.weight)
    torch.nn.init.zeros_(model.head.bias)
    save_weights(model, tmp_path / "zero.safetensors")
    mistake = command("evaluate", tmp_path / "zero.safetensors", "--data", folder).mistake
    assert "every weight of the head is zero" in mistake
