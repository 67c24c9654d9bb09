"""`vitlab summary`."""

import json
from pathlib import Path

import pytest

from command import Command


@pytest.mark.parametrize(("name", "count"), [("vit_seed", "7,690,762"), ("vit_b16", "86,567,656")])
def test_the_exact_number_of_parameters_is_shown(command: Command, name: str, count: str) -> None:
    assert f"Parameters: {count}" in command("summary", name).out


def test_sizes_reach_the_model(command: Command) -> None:
    arguments = ("--image-size", "40x64", "--batch", "3", "--depth", "0", "--json")
    found = json.loads(command("summary", "vit_test", *arguments).out)
    assert found["input_size"] == [3, 3, 40, 64]
    assert found["tokens"] == 1 + 5 * 8
    assert [row["output_shape"] for row in found["rows"]] == [[3, 10]]


def test_fields_of_the_config_can_be_set(command: Command) -> None:
    arguments = ("--set", "classes=7", "--set", "image_size=16x24", "--json")
    found = json.loads(command("summary", "vit_test", *arguments).out)
    assert found["input_size"] == [1, 3, 16, 24]
    assert found["rows"][0]["output_shape"] == [1, 7]


def test_a_name_comes_before_a_file_of_that_name(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("vit_test").write_text("a file, not a model")
    assert command("summary", "vit_test").code == 0
    assert "vit_test" in command("summary", "./vit_test").mistake


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["vit_b61"], "unknown model or file 'vit_b61'; did you mean vit_b16"),
        (["vit_test", "--set", "heads=5"], "width 32 does not split into 5 heads"),
        (["vit_test", "--set", "haeds=4"], "unknown key 'haeds' of ViTConfig; did you mean heads"),
        (["vit_test", "--set", "depth=two"], "key 'depth': found 'two', expected int"),
        (["vit_test", "--image-size", "41"], "image_size 41: height is not a multiple"),
        (["vit_test", "--image-size", "32x41"], "width is not a multiple of patch_size 8"),
    ],
)
def test_a_mistake_is_one_line(command: Command, arguments: list[str], message: str) -> None:
    assert message in command("summary", *arguments).mistake


def test_the_layout_of_torchinfo(command: Command) -> None:
    found = command("summary", "vit_seed", "--batch", 2, "--layout", "torchinfo")
    assert "torchinfo counts them: 18.92 M" in found.out
    assert "EncoderBlock: 3-1" in found.out
    mistake = command("summary", "vit_seed", "--layout", "torchinf").mistake
    assert mistake == "unknown layout 'torchinf'; did you mean torchinfo?"
