"""`vitlab figures`: files in a folder, and what is said of them."""

import json
from pathlib import Path

import pytest

from command import Command
from data.colours import saved_model, write_colours

pytest.importorskip("matplotlib")


def test_figures_are_written_and_told(command: Command, tmp_path: Path) -> None:
    model = saved_model(tmp_path / "weights.safetensors", position="rope")
    folder = write_colours(tmp_path / "colours", {"train": 2})
    (folder / "train" / "red" / "0.png").write_bytes(b"nothing")
    output = tmp_path / "out"
    wanted = ("--only", "positions, cka", "--images", 50)
    outcome = command("figures", model, "--output", output, "--data", folder, *wanted)
    assert outcome.code == 0, outcome.err
    assert "left out: positions: rotary positions turn queries and keys" in outcome.err
    assert "0.png: not an image" in outcome.err
    assert outcome.out.splitlines() == [
        "model    weights",
        "images   5",
        "figures  cka",
        f"folder   {output}",
    ]
    assert len(list(output.iterdir())) == 3


def test_json(command: Command, tmp_path: Path) -> None:
    output = tmp_path / "out"
    outcome = command("figures", "vit_test", "--output", output, "--only", "positions", "--json")
    found = json.loads(outcome.out)
    assert (found["model"], found["random_weights"], found["images"]) == ("vit_test", True, 0)
    files = [str(output / f"positions.{kind}") for kind in ("png", "svg", "json")]
    assert found["figures"]["positions"]["files"] == files
    assert "learned1d added to the patches" in found["figures"]["positions"]["caption"]


def test_random_weights_are_said_to_be(command: Command, tmp_path: Path) -> None:
    outcome = command("figures", "vit_test", "--output", tmp_path, "--only", "positions")
    assert "(random weights)" in outcome.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "filters,nothing"], "unknown figure 'nothing'; valid: attention-distance"),
        (["--images", "0"], "--images"),
        (["--data", "smaple"], "smaple: no such file, folder or dataset; did you mean sample"),
    ],
)
def test_mistakes_are_one_line(
    command: Command, tmp_path: Path, arguments: list[str], message: str
) -> None:
    output = tmp_path / "out"
    assert message in command("figures", "vit_test", "--output", output, *arguments).mistake
    assert not output.exists()
