"""`--preprocessing`, `--mean`, `--std`, `--interpolation`, `--crop` wherever weights are read."""

import json
import random
from pathlib import Path

import pytest
import torch
import typer

from command import Command
from data.colours import write_colours
from vitlab import create_model, load
from vitlab.cli.main import app
from vitlab.cli.options import PREPROCESSING
from vitlab.weights.bundle import save_bundle

READING = {
    *("predict", "evaluate", "features", "fewshot", "similar", "explain", "figures"),
    *("walkthrough", "export", "benchmark", "convert", "info", "finetune", "serve"),
    *("explore", "zeroshot"),
}
"""Commands that read weights and prepare images, or pass the preprocessing on."""
STATED = ("--mean", "0.25", "--std", "0.5,0.25,0.125")


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """A bundle that does not say its preprocessing."""
    model = create_model("vit_test", image_size=16, classes=3)
    torch.nn.init.normal_(model.get_parameter("head.weight"))
    save_bundle(tmp_path / "mine", model, preprocessing=None, labels=["0", "1", "2"])
    return tmp_path / "mine"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_colours(tmp_path / "colours", {"train": 6, "test": 2})


def test_every_command_that_reads_weights_has_the_options() -> None:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    having = {
        name
        for name, found in commands.items()
        if {f"--{option}" for option in PREPROCESSING} <= {o for p in found.params for o in p.opts}
    }
    assert having == READING


def test_predict_needs_it_and_takes_it(command: Command, weights: Path, folder: Path) -> None:
    image = next(folder.rglob("*.png"))
    assert "--preprocessing imagenet, half or FILE" in command("predict", weights, image).mistake
    (found,) = json.loads(command("predict", weights, image, *STATED, "--json").out)
    stated = {"mean": 0.25, "std": (0.5, 0.25, 0.125)}
    expected = load(weights, preprocessing=stated).predict(image)[0]
    assert found["label"] == expected.label


def test_predict_takes_another_image_size(command: Command, weights: Path, folder: Path) -> None:
    image = next(folder.rglob("*.png"))
    size = ("--image-size", "24x32", *STATED)
    (found,) = json.loads(command("predict", weights, image, *size, "--json").out)
    stated = {"mean": 0.25, "std": (0.5, 0.25, 0.125)}
    model = load(weights, image_size=(24, 32), preprocessing=stated)
    expected = model.predict(image)[0]
    assert model.preprocessing.size == (24, 32)
    assert found["probability"] == pytest.approx(expected.probability, abs=1e-6)


def test_evaluate_with_labels_of_the_data(
    command: Command, weights: Path, folder: Path, tmp_path: Path
) -> None:
    names = sorted(path.name for path in (folder / "test").iterdir())
    labels, page = tmp_path / "names.json", tmp_path / "page.html"
    labels.write_text(json.dumps(names))
    stated = (
        *("--labels", labels, "--image-size", "24x32"),
        *("--preprocessing", "half", "--crop", "0.75"),
    )
    outcome = command(
        "evaluate", weights, "--data", folder, "--engine", "torch", *stated, "--output", page
    )
    assert outcome.code == 0, outcome.err
    words = f"--labels {labels} --image-size 24x32 --preprocessing half --crop 0.75"
    assert words in page.read_text()


def test_features_and_similar_prepare_alike(
    command: Command, weights: Path, folder: Path, tmp_path: Path
) -> None:
    output, image = tmp_path / "f.npz", sorted(folder.rglob("*.png"))[random.randrange(24)]
    assert command("features", weights, folder, "--output", output, *STATED).code == 0
    found = json.loads(command("similar", output, image, "--top", 1, "--json").out)
    assert found["matches"][0]["similarity"] == pytest.approx(1, abs=1e-4)


def test_export_info_and_benchmark(command: Command, weights: Path, tmp_path: Path) -> None:
    facts = json.loads(command("info", weights, *STATED, "--json").out)
    assert facts["preprocessing"]["std"] == [0.5, 0.25, 0.125]
    pytest.importorskip("onnxscript")
    file = tmp_path / "mine.onnx"
    assert command("export", weights, "--output", file, *STATED).code == 0
    assert load(file, engine="auto").preprocessing.mean == (0.25,) * 3
    mistake = command("benchmark", file, *STATED).mistake
    assert mistake == f"{file} is fixed: preprocessing cannot be changed any more"
    assert command("predict", file, file, *STATED).mistake == mistake


def test_benchmark_measures_accuracy_with_it(
    command: Command, folder: Path, tmp_path: Path
) -> None:
    names = sorted(path.name for path in (folder / "test").iterdir())
    weights = tmp_path / "named"
    model = create_model("vit_test", image_size=16, classes=3)
    model.head.weight.data.normal_()
    save_bundle(weights, model, preprocessing=None, labels=names)
    short = ("--rounds", 1, "--seconds", 0.01, "--batch", 1, "--engines", "torch", "--json")
    asked = ("benchmark", weights, "--data", folder, *short)
    assert "nothing says how images are prepared" in command(*asked).mistake
    outcome = command(*asked, "--preprocessing", "half", "--download")
    assert outcome.code == 0, outcome.err
    (accuracy,) = json.loads(outcome.out)["accuracies"]
    assert accuracy["images"] == 6


def test_explore_prepares_its_samples(
    command: Command, weights: Path, folder: Path, tmp_path: Path
) -> None:
    image = next(folder.rglob("*.png"))
    asked = ("explore", weights, "--images", image, "--static", tmp_path / "site")
    assert "--preprocessing imagenet, half or FILE" in command(*asked).mistake
    assert command(*asked, *STATED).code == 0
    facts = json.loads((tmp_path / "site" / "data" / "model.json").read_text())
    assert facts["fill"] == [64] * 3  # painted patches have the mean colour


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--mean", "a,b"), "neither a number nor one for each channel"),
        (("--preprocessing", "imagnet"), "valid: imagenet, half or a JSON file"),
        (("--mean", "0.5"), "std is missing"),
    ],
)
def test_mistakes_are_one_line(
    command: Command, weights: Path, folder: Path, options: tuple[str, ...], message: str
) -> None:
    assert message in command("predict", weights, folder, *options).mistake
