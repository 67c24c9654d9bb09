"""The program that docs/export.md shows: a file, its metadata and pictures, without vitlab."""

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import vitlab
from command import ROOT
from exporting.exported import quieten
from reference.random_weights import randomise
from vitlab import Preprocessing
from vitlab.classify.classifier import Classifier
from vitlab.classify.predictor import Prediction
from vitlab.cli.main import run
from vitlab.models.variants import create_model
from vitlab.weights.source import WeightSource

pytest.importorskip("onnxscript")
pytestmark = pytest.mark.usefixtures("no_type_checks")

ALONE = """
import runpy, sys
for name in ("vitlab", "torch", "onnx"):
    sys.modules[name] = None  # whoever imports it gets an ImportError
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
LABELS = ("ash", "beech", "cedar", "elm", "fir")
SIZE = (96, 160)
# Numbers at which rounding decides: 96 / 0.9 is 106.67, and 177 - 160 has no middle.
CROP = 0.9


def documented() -> str:
    """The program in the page that runs a file without vitlab."""
    text = (ROOT / "docs" / "export.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    (found,) = (block for block in blocks if "import vitlab" not in block)
    return str(found)


def answers_alone(file: Path, pictures: Sequence[Path], folder: Path) -> list[dict[str, float]]:
    script = folder / "alone.py"
    script.write_text(documented())
    done = subprocess.run(
        [sys.executable, "-I", "-c", ALONE, str(script), str(file), *map(str, pictures)],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert [one["path"] for one in told] == [str(path) for path in pictures]
    return [dict(one["top"]) for one in told]


def check(found: list[dict[str, float]], wanted: list[Prediction]) -> None:
    assert len(found) == len(wanted) > 4
    for ours, theirs in zip(found, wanted, strict=True):
        assert theirs.error is None
        assert list(ours) == [label for label, _ in theirs.top]
        # Float32 in two runtimes; one pixel of the crop further is a thousand times that.
        assert ours == pytest.approx(dict(theirs.top), abs=1e-5)


def built(**changes: Any) -> Any:
    model: Any = create_model("vit_test", classes=len(LABELS), **changes)
    randomise(model)
    quieten(model)
    return model


def prepared(channels: int, **changes: Any) -> Preprocessing:
    mean = tuple(0.3 + 0.07 * number for number in range(channels))
    std = tuple(0.2 + 0.03 * number for number in range(channels))
    return Preprocessing(size=SIZE, crop=CROP, mean=mean, std=std, **changes)


def in_torch(model: Any, preprocessing: Preprocessing, paths: list[Path]) -> list[Prediction]:
    source = WeightSource(
        format="vitlab", path=Path("x"), preprocessing=preprocessing, labels=LABELS
    )
    return Classifier(model, source).predict(paths)


def noise(*shape: int, most: int = 255) -> Any:
    return np.random.default_rng(shape[0]).integers(0, most + 1, shape)


def photographs(folder: Path) -> list[Path]:
    """Wide, tall, turned, transparent, with a palette, and of 16 bits."""
    names = ("wide.png", "turned.jpg", "clear.png", "palette.png", "deep.png", "tall.npy")
    paths = [folder / name for name in names]
    colour = Image.fromarray(noise(61, 203, 3).astype(np.uint8))
    colour.save(paths[0])
    turned = Image.Exif()
    turned[0x0112] = 6
    Image.fromarray(noise(131, 97, 3).astype(np.uint8)).save(paths[1], exif=turned)
    Image.fromarray(noise(77, 83, 4).astype(np.uint8)).save(paths[2])
    colour.quantize(16).save(paths[3], transparency=3)
    Image.fromarray(noise(59, 101, most=3000).astype(np.uint16)).save(paths[4])
    np.save(paths[5], noise(149, 67, most=3000).astype(np.uint16))
    return paths


def four_channels(folder: Path) -> list[Path]:
    """Pictures and arrays that are or become four channels."""
    names = ("clear.png", "colour.jpg", "inks.jpg", "last.npy", "first.npy")
    paths = [folder / name for name in names]
    Image.fromarray(noise(61, 203, 4).astype(np.uint8)).save(paths[0])
    Image.fromarray(noise(131, 97, 3).astype(np.uint8)).save(paths[1])
    inks = noise(77, 83, 4).astype(np.uint8).tobytes()
    Image.frombytes("CMYK", (83, 77), inks).save(paths[2])
    np.save(paths[3], noise(59, 101, 4).astype(np.uint8))
    np.save(paths[4], noise(4, 149, 67, most=65535).astype(np.uint16))
    return paths


def test_four_channels_registers_and_the_mean(tmp_path: Path) -> None:
    model = built(patch_size=8, image_size=SIZE, channels=4, registers=4, pool="mean")
    told, file, paths = prepared(4), tmp_path / "a.onnx", four_channels(tmp_path)
    vitlab.export(model, output=file, preprocessing=told, labels=LABELS)
    check(answers_alone(file, paths, tmp_path), in_torch(model, told, paths))


def test_a_hybrid_that_takes_pixels(tmp_path: Path) -> None:
    model = built(stem="resnet", resnet_width=32, resnet_layers=(1,), patch_size=2, image_size=SIZE)
    told = prepared(3, keep_aspect=False, interpolation="lanczos")
    file, paths = tmp_path / "a.onnx", photographs(tmp_path)
    vitlab.export(model, output=file, preprocessing=told, labels=LABELS, preprocess_inside=True)
    check(answers_alone(file, paths, tmp_path), in_torch(model, told, paths))


def test_learned_positions_in_another_size(tmp_path: Path) -> None:
    model = built(patch_size=8, image_size=64, channels=1, registers=3, position="learned1d")
    told = replace(prepared(1, interpolation="bilinear", white=1000.0), size=(64, 64))
    model.source = WeightSource(format="vitlab", path=Path("x"), preprocessing=told, labels=LABELS)
    weights, file, paths = tmp_path / "a.safetensors", tmp_path / "a.onnx", photographs(tmp_path)
    vitlab.save_weights(model, weights)
    assert run(["export", str(weights), "--image-size", "96x160", "--output", str(file)]) == 0
    check(
        answers_alone(file, paths, tmp_path), vitlab.load(weights, image_size=SIZE).predict(paths)
    )


def test_a_task_is_told_in_its_own_way(tmp_path: Path) -> None:
    """Labels beside each other, of a fresh model whose preprocessing is assumed."""
    model = built(image_size=SIZE, depth=1)
    half = Preprocessing(size=SIZE, mean=(0.5,) * 3, std=(0.5,) * 3)
    paths, file = photographs(tmp_path), tmp_path / "a.onnx"
    source = WeightSource(
        format="vitlab", path=Path("x"), preprocessing=half, labels=LABELS, task="multi-label"
    )
    classifier = Classifier(model, source)
    vitlab.export(classifier, output=file)
    check(answers_alone(file, paths, tmp_path), classifier.predict(paths))
