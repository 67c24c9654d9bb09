"""`vitlab explain`: figures, numbers, the tests of maps, and what is refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from command import Command
from jobs.classifiers import LABELS, colours, saved_model


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model and some photos."""
    folder = tmp_path_factory.mktemp("explain")
    saved_model(folder / "model.safetensors")
    colours(folder / "photos", 4)
    return folder


def test_a_figure_and_what_it_shows(command: Command, place: Path, tmp_path: Path) -> None:
    output = tmp_path / "map.png"
    outcome = command(
        "explain",
        place / "model.safetensors",
        place / "photos" / "00.png",
        *("--class", "green", "--output", output),
    )
    assert (outcome.code, outcome.err) == (0, "")
    assert "Which patches support “green”, seen from the class token?" in outcome.out
    assert "00.png" in outcome.out
    assert f"figure: {output}" in outcome.out
    with Image.open(output) as image:
        assert image.format == "PNG"
        assert min(image.size) > 300
    assert [path.name for path in tmp_path.iterdir()] == ["map.png"]


@pytest.mark.parametrize("ending", ["svg", "pdf"])
def test_other_formats(command: Command, place: Path, tmp_path: Path, ending: str) -> None:
    output = tmp_path / f"map.{ending}"
    photo = place / "photos" / "01.png"
    options = ("--method", "rollout", "--each", "layer", "--output", output)
    assert command("explain", place / "model.safetensors", photo, *options).code == 0
    opening = output.read_bytes()[:200]
    assert (b"<?xml" in opening) if ending == "svg" else opening.startswith(b"%PDF")


def test_numbers(command: Command, place: Path) -> None:
    outcome = command(
        "explain",
        place / "model.safetensors",
        place / "photos",
        *("--method", "attention", "--each", "head", "--token", "2,1", "--json"),
    )
    assert (outcome.code, outcome.err) == (0, "")
    found = json.loads(outcome.out)
    assert (found["output"], found["named"], found["broken"]) == (None, 4, {})
    assert len(found["images"]) == 4
    first = found["images"][0]
    assert first["path"] == str(place / "photos" / "00.png")
    assert np.array(first["map"]).shape == (4, 4)
    assert np.array(first["layers"]).shape == (2, 2, 4, 4)
    assert np.array(first["layers"])[-1].mean(axis=0) == pytest.approx(np.array(first["map"]))
    assert first["elsewhere"] + np.sum(first["map"]) == pytest.approx(1, abs=1e-5)
    assert first["class"] is None
    assert first["token"] == [2, 1]
    assert {label for label, _ in first["top"]} == set(LABELS)
    assert first["picture"] == [37, 41]


def test_an_image_of_a_dataset(command: Command, place: Path) -> None:
    model = place / "model.safetensors"
    outcome = command("explain", model, "sample/test/17", "--method", "gradcam", "--json")
    (one,) = json.loads(outcome.out)["images"]
    assert one["path"] == "sample/test/17"
    assert one["picture"] == [32, 32]


def test_some_of_many_and_the_broken(command: Command, place: Path, tmp_path: Path) -> None:
    colours(tmp_path / "photos", 5)
    (tmp_path / "photos" / "05.png").write_text("no image")
    options = ("--images", 3, "--output", tmp_path / "a.png")
    outcome = command("explain", place / "model.safetensors", tmp_path / "photos", *options)
    assert outcome.code == 0
    assert "of 6 images, drawn at random" in outcome.out
    told = command("explain", place / "model.safetensors", tmp_path / "photos", "--json")
    found = json.loads(told.out)
    assert len(found["images"]) == 5
    assert list(found["broken"]) == [str(tmp_path / "photos" / "05.png")]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "nothing to write: give --output FILE.png, --json, or both"),
        (["--output", "map.gif"], "map.gif: valid: a name that ends in .png, .svg, .pdf"),
        (["--output", "no/where.png"], "no/where.png: there is no folder"),
        (["--json", "--class", "blu"], "unknown class 'blu'; did you mean blue?"),
        (["--json", "--class", "9"], "class 9; valid: 0 to 2, or a name"),
        (["--json", "--method", "cam"], "unknown method 'cam'; did you mean gradcam"),
        (["--json", "--token", "1"], "'1' is not ROW,COLUMN of a patch from 0, such as 3,5"),
        (["--json", "--method", "rollout", "--token", "4,0"], "token 4,0; valid: rows 0 to 3"),
        (["--json", "--steps", "4"], "--steps is for --faithfulness"),
        (["--json", "--removed", "blur"], "--removed is for --faithfulness"),
        (["--output", "a.png", "--images", "40"], "a figure of 40 images; valid: up to 32"),
        (["--faithfulness", "--class", "red"], "--class is not for --faithfulness"),
        (["--faithfulness", "--each", "head"], "--each is not for --faithfulness"),
        (["--faithfulness", "--steps", "17"], "steps 17; valid: 2 to 16, the number of patches"),
        (["--faithfulness", "--removed", "x"], "unknown removed 'x'; valid: blur, mean"),
        (["--faithfulness", "--method", "relevance,x"], "unknown method 'x'"),
    ],
)
@pytest.mark.usefixtures("no_type_checks")
def test_mistakes_are_one_line_and_nothing_is_written(
    command: Command,
    place: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    photo = place / "photos" / "00.png"
    outcome = command("explain", place / "model.safetensors", photo, *options)
    assert message in outcome.mistake
    assert list(tmp_path.iterdir()) == []


def test_every_head_of_several_images_is_too_much(
    command: Command, place: Path, tmp_path: Path
) -> None:
    options = ("--method", "attention", "--each", "head", "--output", tmp_path / "a.png")
    outcome = command("explain", place / "model.safetensors", place / "photos", *options)
    assert "every head of 4 images; valid: one image" in outcome.mistake
    assert list(tmp_path.iterdir()) == []


def test_an_image_that_is_none(command: Command, place: Path, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_text("no image")
    found = command("explain", place / "model.safetensors", tmp_path / "a.png", "--json")
    assert "a.png" in found.mistake
    twice = (tmp_path / "a.png", tmp_path / "a.png")
    assert "a.png" in command("explain", place / "model.safetensors", *twice, "--json").mistake
    missing = command("explain", place / "model.safetensors", tmp_path / "b.png", "--json")
    assert "b.png: no such file" in missing.mistake


def faithfulness_of(command: Command, place: Path, *options: Any) -> Any:
    outcome = command(
        *("explain", place / "model.safetensors", place / "photos", "--faithfulness"),
        *("--steps", 4, "--json", *options),
    )
    assert (outcome.code, outcome.err) == (0, "")
    return json.loads(outcome.out)


def test_faithfulness(command: Command, place: Path, tmp_path: Path) -> None:
    found = faithfulness_of(command, place, "--output", tmp_path / "curves.png")
    assert (found["images"], found["steps"], found["removed"]) == (4, 4, "mean")
    assert found["shares"] == [0, 0.25, 0.5, 0.75, 1]
    methods = ["attention", "rollout", "relevance", "gradcam", "input-gradient", "random"]
    assert [score["method"] for score in found["scores"]] == methods
    chance = found["scores"][-1]
    for score in found["scores"]:
        for test, sign in (("deletion", -1), ("insertion", 1)):
            curve, area = score[f"{test}_curve"], score[test]
            assert len(curve) == 5
            # The mean of the areas is the area of the mean.
            assert area["mean"] == pytest.approx(np.trapezoid(curve, found["shares"]))
            assert area["interval"][0] <= area["mean"] <= area["interval"][1]
            assert area["gain"] == pytest.approx(sign * (area["mean"] - chance[test]["mean"]))
        # Whatever the order, it begins and ends with the same images.
        assert score["deletion_curve"][0] == pytest.approx(chance["insertion_curve"][-1])
        assert score["deletion_curve"][-1] == pytest.approx(chance["insertion_curve"][0])
    with Image.open(tmp_path / "curves.png") as image:
        assert min(image.size) > 300
    assert found == faithfulness_of(command, place)


def test_one_image_has_no_interval(command: Command, place: Path) -> None:
    photo = place / "photos" / "00.png"
    options = ("--faithfulness", "--steps", 2, "--method", "rollout")
    found = command("explain", place / "model.safetensors", photo, *options, "--json")
    assert json.loads(found.out)["scores"][0]["deletion"]["interval"] is None
    assert " to " not in command("explain", place / "model.safetensors", photo, *options).out


def test_faithfulness_of_some_methods_as_a_table(command: Command, place: Path) -> None:
    outcome = command(
        *("explain", place / "model.safetensors", place / "photos", "--faithfulness"),
        *("--steps", 2, "--images", 2, "--method", "rollout,gradcam", "--removed", "blur"),
    )
    assert (outcome.code, outcome.err) == (0, "")
    lines = outcome.out.splitlines()
    assert lines[0].startswith("2 images, 2 steps, removed patches: blur.")
    assert [line.split()[0] for line in lines[-3:]] == ["rollout", "gradcam", "random"]
    assert lines[-1].split()[-1] == "-"


def test_values_have_no_probability(command: Command, place: Path, tmp_path: Path) -> None:
    model = saved_model(tmp_path / "values.safetensors", task="regression")
    outcome = command("explain", model, place / "photos", "--faithfulness", "--steps", 2)
    assert "faithfulness of a regression; valid: a model that predicts prob" in outcome.mistake
