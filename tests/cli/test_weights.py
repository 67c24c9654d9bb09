"""`vitlab info`, `convert`, `predict` and `summary` on weight files, sound and broken."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from command import Command
from reference.foreign import without_note
from vitlab import Preprocessing, VisionTransformer, create_model, load_weights, save_weights
from vitlab.weights.source import WeightSource

LABELS = tuple("abcdefghij")
HALF = (0.5, 0.5, 0.5)


@pytest.fixture
def model() -> VisionTransformer:
    torch.manual_seed(0)
    made = create_model("vit_test", gelu="tanh", width=128)  # heads of 64, as formats assume
    assert isinstance(made, VisionTransformer)
    assert made.head is not None
    torch.nn.init.normal_(made.head.weight)
    made.source = WeightSource(
        format="vitlab",
        path=Path("vit_test"),
        preprocessing=Preprocessing(size=(32, 32), mean=HALF, std=HALF),
        labels=LABELS,
    )
    return made


@pytest.fixture
def weights(model: VisionTransformer, tmp_path: Path) -> Path:
    """Our own file: config, preprocessing and labels inside."""
    save_weights(model, tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


@pytest.fixture
def image(tmp_path: Path) -> Path:
    pixels = np.random.default_rng(0).integers(0, 256, (41, 37, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "image.png")
    return tmp_path / "image.png"


def test_info_tells_what_the_file_knows(command: Command, weights: Path) -> None:
    facts = json.loads(command("info", weights, "--json").out)
    assert facts["format"] == "vitlab"
    assert facts["model"]["width"] == 128
    assert facts["preprocessing"]["mean"] == list(HALF)
    assert facts["labels"] == list(LABELS)
    assert facts["zero_head"] is False
    rows = re.findall(r"^  (\S+(?: \S+)*) {2,}(.+)$", command("info", weights).out, re.MULTILINE)
    lines = dict(rows)
    assert lines["kind"] == "weight file, format vitlab"
    assert "width=128" in lines["settings"]
    assert "gelu=tanh" in lines["settings"]
    assert lines["classes"] == "10"
    assert lines["names"] == ", ".join(LABELS)
    assert lines["licence"] == "not stated"


def test_info_tells_what_is_unknown_and_assumed(
    command: Command, model: VisionTransformer, tmp_path: Path
) -> None:
    assert model.head is not None
    torch.nn.init.zeros_(model.head.weight)
    model.source = None
    save_weights(model, tmp_path / "a.npz", format="google")
    out = command("info", tmp_path / "a.npz").out
    assert "all zeros: not trained" in out
    assert re.search(r"^  preprocessing +not stated$", out, re.MULTILINE)
    assert json.loads(command("info", tmp_path / "a.npz", "--json").out)["zero_head"] is True


def test_convert_and_back_changes_no_bit(command: Command, weights: Path, tmp_path: Path) -> None:
    there, back = tmp_path / "there.npz", tmp_path / "back.safetensors"
    assert command("convert", weights, there, "--format", "google").code == 0
    outcome = command("convert", there, back, "--format", "vitlab", "--json")
    assert json.loads(outcome.out)["source_format"] == "google"
    before, after = load_file(weights), load_file(back)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_convert_adapts_and_says_what_it_assumed(
    command: Command, model: VisionTransformer, tmp_path: Path
) -> None:
    theirs, ours = tmp_path / "theirs.pth", tmp_path / "ours.safetensors"
    save_weights(model, theirs, format="timm")
    without_note(theirs)
    options = ("--image-size", "16x40", "--classes", "3", "--heads", "2")
    outcome = command("convert", theirs, ours, "--format", "vitlab", *options)
    assert outcome.code == 0
    assert outcome.err.count("gelu erf") == 1
    assert "gelu erf" not in outcome.out
    config = load_weights(ours).config
    assert (config.image_size, config.classes, config.heads) == ((16, 40), 3, 2)


def test_convert_does_not_overwrite_unasked(command: Command, weights: Path) -> None:
    before = weights.read_bytes()
    arguments = ("convert", weights, weights, "--format", "timm")
    assert "exists; --force overwrites it" in command(*arguments).mistake
    assert weights.read_bytes() == before
    assert command(*arguments, "--force").code == 0
    assert "patch_embed.proj.weight" in load_file(weights)


def test_predict_gives_labels_and_probabilities(
    command: Command, weights: Path, image: Path
) -> None:
    (found,) = json.loads(command("predict", weights, image, "--top", "3", "--json").out)
    assert found["path"] == str(image)
    assert len(found["top"]) == 3
    assert found["top"][0] == [found["label"], found["probability"]]
    assert found["label"] in LABELS
    rows = command("predict", weights, image, "--top", "3").out.splitlines()[2:]
    assert [row.split()[1] for row in rows] == [label for label, _ in found["top"]]


def test_a_broken_image_is_one_line_and_does_not_stop_the_others(
    command: Command, weights: Path, image: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.jpg"
    broken.write_text("no image")
    reason = "broken.jpg: not an image of a known format"
    assert reason in command("predict", weights, broken).mistake
    outcome = command("predict", weights, broken, image, "--top", "1")
    assert outcome.code == 3
    assert str(image) in outcome.out
    assert outcome.err.count("\n") == 1


def test_a_summary_of_a_file(command: Command, weights: Path) -> None:
    named = json.loads(command("summary", "vit_test", "--set", "width=128", "--json").out)
    filed = json.loads(command("summary", weights, "--json").out)
    assert filed["parameters"] == named["parameters"]


def test_what_a_file_leaves_open_can_be_set(
    command: Command, model: VisionTransformer, tmp_path: Path
) -> None:
    path = tmp_path / "a.pth"
    save_weights(model, path, format="timm")
    without_note(path)
    facts = json.loads(
        command("info", path, "--set", "heads=4", "--set", "gelu=tanh", "--json").out
    )
    assert (facts["model"]["heads"], facts["model"]["gelu"]) == (4, "tanh")
    assert "key 'gelu': found 'tan'" in command("info", path, "--set", "gelu=tan").mistake
    assert "unknown key 'hedas'" in command("info", path, "--set", "hedas=4").mistake


def broken_files(folder: Path, model: VisionTransformer) -> dict[str, Path]:
    """One file for each way in which weights come broken."""
    save_weights(model, folder / "good.npz", format="google")
    save_weights(model, folder / "good.safetensors", format="timm")
    good = load_file(folder / "good.safetensors")
    files = {
        name: folder / name
        for name in (
            "absent.npz",
            "truncated.npz",
            "pickled.npz",
            "text.safetensors",
            "missing.safetensors",
            "extra.safetensors",
            "shape.safetensors",
            "empty.safetensors",
        )
    }
    whole = (folder / "good.npz").read_bytes()
    files["truncated.npz"].write_bytes(whole[: len(whole) // 2])
    np.savez(files["pickled.npz"], **{"head/bias": np.array([{"a": 1}], dtype=object)})
    files["text.safetensors"].write_text("these are no weights\n" * 9)
    files["empty.safetensors"].write_bytes(b"")
    missing = {name: tensor for name, tensor in good.items() if name != "blocks.1.attn.proj.bias"}
    save_file(missing, files["missing.safetensors"])
    save_file(good | {"another": torch.zeros(2)}, files["extra.safetensors"])
    save_file(good | {"blocks.1.norm1.weight": torch.ones(7)}, files["shape.safetensors"])
    return files


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("absent.npz", "absent.npz"),
        ("truncated.npz", "truncated.npz"),
        ("pickled.npz", "pickle"),
        ("text.safetensors", "text.safetensors"),
        ("empty.safetensors", "empty.safetensors"),
        ("missing.safetensors", "blocks.1.attn.proj.bias"),
        ("extra.safetensors", "another"),
        ("shape.safetensors", "blocks.1.norm1.weight"),
    ],
)
def test_broken_weights_are_one_line(
    command: Command,
    model: VisionTransformer,
    image: Path,
    tmp_path: Path,
    name: str,
    message: str,
) -> None:
    path = broken_files(tmp_path, model)[name]
    assert message in command("info", path).mistake
    assert message in command("summary", path).mistake
    assert message in command("predict", path, image).mistake
    target = tmp_path / "out.safetensors"
    assert message in command("convert", path, target, "--format", "vitlab").mistake
    assert not target.exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--format", "tim"], "unknown format 'tim'; did you mean timm?"),
        (["--format", "vit-pytorch"], "format 'vit-pytorch' cannot express"),
        (["--format", "vitlab", "--image-size", "41"], "image_size 41: height is not a multiple"),
        (["--format", "vitlab", "--heads", "5"], "heads"),
    ],
)
def test_a_conversion_that_cannot_be_is_one_line(
    command: Command, weights: Path, tmp_path: Path, options: list[str], message: str
) -> None:
    target = tmp_path / "out.safetensors"
    assert message in command("convert", weights, target, *options).mistake
    assert not target.exists()


def test_predicting_with_an_untrained_head_is_refused(
    command: Command, model: VisionTransformer, image: Path, tmp_path: Path
) -> None:
    assert model.head is not None
    torch.nn.init.zeros_(model.head.weight)
    save_weights(model, tmp_path / "zero.safetensors")
    assert "zero" in command("predict", tmp_path / "zero.safetensors", image).mistake


def test_predicting_without_knowing_the_preprocessing_is_refused(
    command: Command, model: VisionTransformer, image: Path, tmp_path: Path
) -> None:
    model.source = None
    save_weights(model, tmp_path / "a.npz", format="google")
    assert "prepared" in command("predict", tmp_path / "a.npz", image).mistake
