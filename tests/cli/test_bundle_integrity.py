"""Bundles whose files were damaged or replaced, or whose config.json says impossible things."""

import json
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import vitlab
from command import Command
from vitlab.errors import VitlabError
from vitlab.weights.bundle import FILES
from weights.bundles import edit_config, make_bundle, small_model

pytestmark = pytest.mark.usefixtures("no_type_checks")

INSIDE = Path(vitlab.__file__).parent / "bundled" / "vit_cifar.cifar10"


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A copy of the model inside the package, weights and ONNX file."""
    return shutil.copytree(INSIDE, tmp_path / "bundle")


@pytest.fixture
def image(tmp_path: Path) -> Path:
    pixels = np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "image.png")
    return tmp_path / "image.png"


def alter(path: Path, count: int = 4000) -> None:
    """Change bytes in the middle of a file."""
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + count] = bytes(x ^ 1 for x in content[middle : middle + count])
    path.write_bytes(content)


@pytest.mark.parametrize("name", ["model.safetensors", "model.onnx"])
@pytest.mark.parametrize("count", [1, 4000])
def test_an_altered_file_does_not_predict(
    bundle: Path, image: Path, command: Command, name: str, count: int
) -> None:
    pytest.importorskip("onnxruntime")
    alter(bundle / name, count)
    assert f"{name} has sha256" in command("predict", bundle, image).mistake
    assert f"{name} has sha256" in command("info", bundle, "--verify").mistake
    if name == "model.onnx":
        assert f"{name} has sha256" in command("predict", bundle / name, image).mistake


def test_altered_weights_are_not_loaded(bundle: Path) -> None:
    alter(bundle / "model.safetensors", 1)
    for load in (vitlab.load, vitlab.load_weights):
        for path in (bundle, bundle / "model.safetensors"):
            with pytest.raises(VitlabError, match=r"model\.safetensors has sha256 .* replaced"):
                load(path)


def test_a_shortened_file_is_told_by_its_size(bundle: Path, command: Command) -> None:
    weights = bundle / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    assert "has 5043319 bytes instead of 5043320" in command("info", bundle).mistake


def test_the_files_of_the_package_are_verified(command: Command) -> None:
    done = command("info", "cifar10", "--verify")
    assert done.code == 0
    assert done.out.startswith("verified: model.safetensors, model.onnx\n")


def test_an_onnx_file_of_other_weights_is_named(
    bundle: Path, image: Path, command: Command, tmp_path: Path
) -> None:
    """Weights and digest replaced together: each file is whole, and they disagree."""
    other = vitlab.load(bundle)
    other.model.head.weight.data.mul_(2.0)
    vitlab.save_weights(other.model, tmp_path / "other.safetensors")
    shutil.copy(tmp_path / "other.safetensors", bundle / "model.safetensors")
    edit_config(bundle, files=None)
    engine = ("--engine", "onnxruntime")
    told = command("predict", bundle, image, *engine).mistake
    assert "model.onnx was not made of the model.safetensors" in told


def test_an_older_bundle_has_no_digests_and_loads(
    bundle: Path, image: Path, command: Command
) -> None:
    edit_config(bundle, files=None)
    assert command("predict", bundle, image).code == 0
    assert "no digests to compare with" in command("info", bundle, "--verify").mistake


def test_an_exported_file_in_a_bundle_gets_its_digest(tmp_path: Path, command: Command) -> None:
    pytest.importorskip("onnxscript")
    bundle = make_bundle(tmp_path / "bundle")
    for _ in range(2):  # the second takes the place of the first
        out = ("--output", bundle / "model.onnx", "--force")
        assert command("export", bundle, *out).code == 0
        assert command("info", bundle, "--verify").out.startswith(
            "verified: model.safetensors, model.onnx\n"
        )


HUGE = 10**9
TOO_LARGE = 2**63


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("depth", HUGE),
        ("depth", 900),
        ("depth", TOO_LARGE),
        ("depth", 10**400),
        ("width", HUGE),
        ("width", 2**20),
        ("mlp_width", HUGE),
        ("mlp_width", TOO_LARGE),
        ("image_size", [HUGE, HUGE]),
        ("image_size", [2**16, 2**16]),
        ("registers", HUGE),
        ("channels", HUGE),
        ("classes", TOO_LARGE),
        ("heads", HUGE),
        ("head_width", HUGE),
        ("window_size", HUGE),
        ("norm_eps", 10**400),
        ("norm_eps", float("inf")),
        ("resnet_layers", [HUGE]),
        ("resnet_layers", [1] * 300),
        ("conv_widths", [HUGE]),
        ("patch_size", HUGE),
        ("position_grid", [HUGE, HUGE]),
        ("representation_size", HUGE),
        ("stem", "resnet"),
        ("unknown", 1),
    ],
)
def test_a_config_that_the_weights_refute_is_one_line(
    tmp_path: Path, key: str, value: Any, command: Command
) -> None:
    bundle = make_bundle(tmp_path / "bundle")
    content = json.loads((bundle / "config.json").read_text())
    content["model"][key] = value
    (bundle / "config.json").write_text(json.dumps(content))
    begin = time.monotonic()
    assert str(bundle) in command("info", bundle).mistake
    assert time.monotonic() - begin < 5.0


@pytest.mark.parametrize("key", ["depth", "width", "image_size", "registers"])
def test_so_is_one_inside_a_weight_file(tmp_path: Path, key: str) -> None:
    file = tmp_path / "a.safetensors"
    vitlab.save_weights(small_model(), file)
    content = file.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    config = json.loads(header["__metadata__"]["vitlab"])
    config["model"][key] = 800 if key == "depth" else HUGE
    header["__metadata__"]["vitlab"] = json.dumps(config)
    text = json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + length :])
    begin = time.monotonic()
    with pytest.raises(VitlabError):
        vitlab.load_weights(file)
    assert time.monotonic() - begin < 5.0


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("labels", 5),
        ("labels", "abc"),
        ("labels", [1, 2, 3]),
        ("labels", ["ash", "birch"]),
        ("labels", {"0": "ash"}),
        ("provenance", ["a"]),
        ("provenance", "mine"),
        ("architecture", ["vit"]),
        ("architecture", {}),
        ("architecture", "vti"),
        ("metrics", [1]),
        ("task", ["single-label"]),
        ("task", "guess"),
        ("model", []),
        ("preprocessing", [1]),
        ("preprocessing", {"size": [32, 32], "mean": [0.5], "std": [0.5]}),
        ("preprocessing", {"size": [10**30, 1], "mean": [0.5] * 3, "std": [0.5] * 3}),
        ("files", 3),
        ("files", {"model.safetensors": {"bytes": "many", "sha256": "0"}}),
        ("format_version", [1]),
        ("format_version", 2),
    ],
)
def test_a_value_of_another_type_is_one_line(
    tmp_path: Path, key: str, value: Any, command: Command
) -> None:
    bundle = make_bundle(tmp_path / "bundle")
    edit_config(bundle, **{key: value})
    told = command("info", bundle).mistake
    assert "config.json" in told
    assert key in told


@pytest.mark.parametrize(
    "metrics",
    [
        {"test_accuracy": 1 << 62, "test_images": 5},
        {"test_accuracy": -0.1},
        {"test_accuracy": float("nan")},
        {"test_accuracy": 0.5, "test_images": -5},
        {"test_accuracy": 0.5, "test_images": float("inf")},
        {"test_accuracy": 0.5, "test_images": 2.5},
    ],
)
def test_an_impossible_accuracy_is_one_line(
    tmp_path: Path, metrics: dict[str, float], command: Command
) -> None:
    bundle = make_bundle(tmp_path / "bundle")
    edit_config(bundle, metrics=metrics)
    assert (
        list(metrics)[-1 if metrics["test_accuracy"] == 0.5 else 0]
        in command("info", bundle).mistake
    )


@pytest.mark.parametrize("key", ["labels", "preprocessing", "task", "metrics", "provenance"])
def test_a_missing_value_is_not_guessed(tmp_path: Path, key: str, command: Command) -> None:
    bundle = make_bundle(tmp_path / "bundle")
    edit_config(bundle, **{key: None})
    assert command("info", bundle).code == 0


@pytest.mark.parametrize("name", ["model.safetensors", "model.onnx"])
def test_a_missing_digest_is_not_skipped(
    bundle: Path, image: Path, command: Command, name: str
) -> None:
    pytest.importorskip("onnxruntime")
    content = json.loads((bundle / "config.json").read_text())
    del content[FILES][name]
    (bundle / "config.json").write_text(json.dumps(content))
    for arguments in (("predict", bundle, image), ("info", bundle, "--verify")):
        assert f"no digest of {name}" in command(*arguments).mistake


@pytest.mark.parametrize(
    ("key", "change"),
    [
        ("model", {"gelu": "tanh"}),
        ("preprocessing", {"mean": [0.1, 0.1, 0.1]}),
        ("preprocessing", {"size": [64, 64]}),
        ("task", "multi-label"),
    ],
)
def test_a_changed_config_is_noticed(
    bundle: Path, image: Path, command: Command, key: str, change: Any
) -> None:
    content = json.loads((bundle / "config.json").read_text())
    changed = content[key] | change if isinstance(change, dict) else change
    assert changed != content[key]
    (bundle / "config.json").write_text(json.dumps(content | {key: changed}))
    message = f"{key} differs from the copy in model.safetensors"
    assert message in command("predict", bundle, image, "--engine", "torch").mistake
    assert message in command("info", bundle, "--verify").mistake
    found = command("predict", bundle, image)
    assert (found.code, message in found.err) == (2, True)


def test_changed_labels_are_noticed_by_verify(bundle: Path, command: Command) -> None:
    content = json.loads((bundle / "config.json").read_text())
    content["labels"].reverse()
    (bundle / "config.json").write_text(json.dumps(content))
    assert "labels differs from the copy" in command("info", bundle, "--verify").mistake
    (bundle / "config.json").write_text(json.dumps(content | {"labels": []}))
    assert "0 labels for 10 classes" in command("info", bundle).mistake


def test_verify_says_that_the_weights_are_missing(bundle: Path, command: Command) -> None:
    (bundle / "model.safetensors").unlink()
    assert "model.safetensors: cannot be read" in command("info", bundle, "--verify").mistake
