"""Assumptions about bare weight files are printed once, on stderr; a bundle keeps its weights."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

import vitlab
from command import Command
from weights.bundles import make_bundle

NOTE = "heads 1: head width 64"


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A timm file without a config: its two heads of 32 are one of 64 to a reader."""
    model = vitlab.create_model("vit_test", classes=3, width=64, heads=2)
    assert isinstance(model, vitlab.VisionTransformer)
    assert model.head is not None
    torch.nn.init.normal_(model.head.weight)
    path = tmp_path / "bare" / "bare.safetensors"
    path.parent.mkdir()
    vitlab.save_weights(model, path, format="timm")
    save_file(load_file(path), path)
    processor = {"size": 32, "image_mean": [0.5] * 3, "image_std": [0.5] * 3, "resample": 3}
    (path.parent / "preprocessor_config.json").write_text(json.dumps(processor))
    return path


@pytest.fixture
def image(tmp_path: Path) -> Path:
    noise = np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "noise.png")
    return tmp_path / "noise.png"


def test_load_weights_logs_one_warning(bare: Path, caplog: pytest.LogCaptureFixture) -> None:
    vitlab.load_weights(bare)
    (record,) = caplog.records
    assert (record.levelname, record.name.partition(".")[0]) == ("WARNING", "vitlab")
    for word in (NOTE, "norm_eps 1e-06", "gelu erf", "pool cls", "--set KEY=VALUE", "config.json"):
        assert word in record.getMessage()


def test_nothing_is_assumed_where_all_is_stated(
    bare: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = vitlab.load_weights(bare, heads=2, norm_eps=1e-6, gelu="erf", pool="cls", norm="pre")
    for format, suffix in (("timm", "pth"), ("torchvision", "pt"), ("vitlab", "safetensors")):
        path = tmp_path / f"ours.{suffix}"
        vitlab.save_weights(model, path, format=format)
        assert vitlab.load_weights(path).source.assumed == ()
    vitlab.save_weights(model, tmp_path / "hf", format="huggingface")
    vitlab.load_weights(tmp_path / "hf")
    assert caplog.records == []


@pytest.mark.parametrize(
    "arguments",
    [
        ("predict", "BARE", "IMAGE", "--json"),
        ("explain", "BARE", "IMAGE", "--output", "OUT.png", "--json"),
        ("features", "BARE", "IMAGE", "--output", "OUT.npz", "--json"),
        ("figures", "BARE", "--output", "OUT", "--json"),
        ("walkthrough", "IMAGE", "--model", "BARE", "--output", "OUT.html", "--json"),
        ("convert", "BARE", "OUT.safetensors", "--format", "vitlab", "--json"),
        ("summary", "BARE", "--json"),
        ("info", "BARE", "--json"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_commands_print_it_once(
    arguments: tuple[str, ...], command: Command, bare: Path, image: Path, tmp_path: Path
) -> None:
    places = {"BARE": str(bare), "IMAGE": str(image)}
    words = [places.get(w, w.replace("OUT", str(tmp_path / "out"))) for w in arguments]
    outcome = command(*words)
    assert outcome.code == 0, outcome
    assert outcome.err.count(NOTE) == 1
    json.loads(outcome.out)


@pytest.mark.slow
def test_benchmark_prints_it_once(command: Command, bare: Path) -> None:
    outcome = command("benchmark", bare, "--engines", "torch", "--batch", "1", "--json")
    assert outcome.err.count(NOTE) == 1
    json.loads(outcome.out)


def test_an_architecture_is_trusted_by_set(command: Command, bare: Path) -> None:
    (bare.parent / "config.json").write_text('{"architecture": "naflexvit_base_patch16_gap"}')
    assert "'naflexvit_base_patch16_gap' is not supported" in command("summary", bare).mistake
    outcome = command("summary", bare, "--set", "trust_architecture=true")
    assert outcome.code == 0
    assert outcome.err.count("'naflexvit_base_patch16_gap' is a plain ViT") == 1


@pytest.mark.parametrize("format", ["timm", "torchvision", "vitlab"])
@pytest.mark.parametrize("spelling", ["plain", "dots", "linked folder"])
def test_weights_of_a_bundle_are_not_overwritten(
    format: str, spelling: str, command: Command, tmp_path: Path
) -> None:
    folder = make_bundle(tmp_path / "bundle")
    link = tmp_path / "link"
    link.symlink_to(folder)
    places = {"plain": folder, "dots": folder / ".." / "bundle", "linked folder": link}
    target = places[spelling] / "model.safetensors"
    before = {path: path.read_bytes() for path in folder.iterdir()}
    arguments = ("convert", folder / "model.safetensors", target, "--format", format, "--force")
    assert "weights of a bundle" in command(*arguments).mistake
    assert {path: path.read_bytes() for path in folder.iterdir()} == before
    vitlab.load(folder)


def test_a_bundle_does_not_become_a_folder_of_hugging_face(
    command: Command, tmp_path: Path
) -> None:
    folder = make_bundle(tmp_path / "bundle")
    before = {path: path.read_bytes() for path in folder.iterdir()}
    arguments = ("convert", folder, folder, "--format", "huggingface", "--force")
    assert "config.json of something else" in command(*arguments).mistake
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_other_files_in_a_bundle_are_harmless(command: Command, tmp_path: Path) -> None:
    folder = make_bundle(tmp_path / "bundle")
    link = tmp_path / "link.safetensors"
    link.symlink_to(folder / "model.safetensors")
    for path, format in ((folder / "other.safetensors", "timm"), (link, "timm")):
        assert command("convert", folder, path, "--format", format, "--force").code == 0
    vitlab.load(folder)
