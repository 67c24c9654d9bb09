"""`vitlab fewshot`: a table, JSON and a plot of the library's numbers."""

import json
import sys
from pathlib import Path

import pytest
from PIL import Image

from command import Command
from data.colours import saved_model, write_colours
from vitlab import fewshot


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return saved_model(tmp_path / "model.safetensors")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_colours(tmp_path / "colours", {"train": 7, "test": 5})


def test_json_is_what_the_library_says(command: Command, model: Path, folder: Path) -> None:
    asked = ("--shots", "1,3", "--draws", 2, "--seed", 5, "--methods", "knn,least-squares")
    outcome = command("fewshot", model, "--data", folder, *asked, "--json")
    assert outcome.code == 0, outcome.err
    expected = fewshot(
        model, folder, shots=(1, 3), draws=2, seed=5, methods=["knn", "least-squares"]
    )
    assert json.loads(outcome.out) == expected.to_dict()
    small = command("fewshot", model, "--data", folder, *asked, "--image-size", "8x16", "--json")
    again = fewshot(
        model,
        str(folder),
        shots=(1, 3),
        draws=2,
        seed=5,
        methods=["knn", "least-squares"],
        image_size=(8, 16),
    )
    assert json.loads(small.out) == again.to_dict()
    assert again.scores != expected.scores


def test_people_see_a_table(command: Command, model: Path, folder: Path) -> None:
    outcome = command("fewshot", model, "--data", folder, "--shots", "1,2", "--draws", 2)
    assert outcome.code == 0, outcome.err
    lines = outcome.out.splitlines()
    assert lines[0] == (
        "colours: 15 test images of 3 classes, mean of 2 draws with its 95% interval"
    )
    assert lines[1].split() == ["method", "1", "shot", "2", "shots"]
    assert [line.split()[0] for line in lines[3:]] == ["least-squares", "knn", "logistic"]
    found = fewshot(model, folder, shots=(1, 2), draws=2, methods=["least-squares"]).scores[0]
    low, high = found.interval or (0.0, 0.0)
    assert f"{found.mean:.1%} ({low:.1%} to {high:.1%})" in lines[3]


def test_a_plot(command: Command, model: Path, folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plot = tmp_path / "plot.png"
    asked = ("--shots", "1", "--draws", 1, "--methods", "knn", "--plot", plot)
    outcome = command("fewshot", model, "--data", folder, *asked)
    assert outcome.code == 0, outcome.err
    assert outcome.out.endswith(f"plot: {plot}\n")
    with Image.open(plot) as picture:
        assert picture.format == "PNG"


def test_plots_are_an_extra(
    command: Command, model: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    mistake = command("fewshot", model, "--data", folder, "--plot", "a.png").mistake
    assert mistake == "--plot needs an extra: pip install 'vitlab[plots]'"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--shots", "1,,5"], "'1,,5' is not a list of numbers from 1, such as 1,5,10"),
        (["--shots", "0"], "'0' is not a list of numbers from 1"),
        (["--shots", "5,5"], "shots [5, 5]; valid: different numbers from 1"),
        (["--shots", "8"], "class 'blue' has 7 readable training images, too few for 8 shots"),
        (["--draws", "0"], "--draws"),
        (["--methods", "svm"], "unknown method 'svm'; valid: knn, least-squares, logistic"),
        (["--kind", "patches"], "patches are a grid"),
        (["--plot", "a.pdf"], "the plot is a PNG; valid: a name that ends in .png"),
        (["--plot", "no/where/a.png"], "no/where/a.png: there is no folder"),
        (["--data", "smaple"], "unknown dataset or folder 'smaple'; did you mean sample"),
    ],
)
def test_mistakes_are_one_line(
    command: Command, model: Path, folder: Path, arguments: list[str], message: str
) -> None:
    assert message in command("fewshot", model, "--data", folder, *arguments).mistake
