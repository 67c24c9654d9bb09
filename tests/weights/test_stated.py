"""Preprocessing that the user states: by name, by file, by numbers, in Python."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vitlab
from vitlab.errors import ConfigError, InputError, PreprocessingUnknown, VitlabError
from vitlab.images.preprocessing import IMAGENET_MEAN, IMAGENET_STD
from vitlab.weights.preparation import as_options, read_stated

SIZE = 16


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """A file of timm's format that does not say its preprocessing."""
    path = tmp_path / "weights.pth"
    model = vitlab.create_model("vit_test", image_size=SIZE, classes=5)
    vitlab.save_weights(model, path, format="timm")
    return path


def loaded(path: Path, given: Any, **changes: Any) -> vitlab.Preprocessing:
    """Preprocessing of the weights with a statement."""
    return vitlab.load(path, image_size=SIZE, heads=2, preprocessing=given, **changes).preprocessing


def test_names(weights: Path) -> None:
    found = loaded(weights, "imagenet")
    assert (found.mean, found.std, found.crop) == (IMAGENET_MEAN, IMAGENET_STD, 0.875)
    assert (found.interpolation, found.size) == ("bicubic", (SIZE, SIZE))
    half = loaded(weights, "half")
    assert (half.mean, half.std, half.keep_aspect) == ((0.5,) * 3, (0.5,) * 3, False)


def test_numbers_alone_or_on_top(weights: Path) -> None:
    mean = [round(random.random(), 3) for _ in range(3)]
    found = loaded(weights, {"mean": mean, "std": 0.25, "interpolation": "lanczos"})
    assert (found.mean, found.std, found.crop) == (tuple(mean), (0.25,) * 3, 1.0)
    assert found.interpolation == "lanczos"
    on_top = loaded(weights, {"base": "imagenet", "mean": mean, "crop": 1})
    assert (on_top.mean, on_top.std, on_top.crop) == (tuple(mean), IMAGENET_STD, 1.0)


def test_fields_change_known_preprocessing() -> None:
    known = vitlab.load("cifar10").preprocessing
    found = vitlab.load("cifar10", preprocessing={"crop": 0.5}).preprocessing
    assert (found.mean, found.std, found.crop) == (known.mean, known.std, 0.5)


def test_a_model_of_one_channel(weights: Path) -> None:
    grey = loaded(weights, "imagenet", channels=1)
    np.testing.assert_allclose(grey.mean, [np.mean(IMAGENET_MEAN)])
    assert loaded(weights, {"mean": 0.1, "std": 0.2}, channels=1).mean == (0.1,)


PROCESSOR = {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.4] * 3, "size": 32, "resample": 3}
TIMM = {"pretrained_cfg": {"mean": [0.1, 0.2, 0.3], "std": [0.4] * 3, "crop_pct": 0.9}}
OURS = {"preprocessing": {"size": [8, 8], "mean": [0.1, 0.2, 0.3], "std": [0.4] * 3}}
PLAIN = {"mean": [0.1, 0.2, 0.3], "std": 0.4}


@pytest.mark.parametrize(
    ("content", "crop"), [(PROCESSOR, 1.0), (TIMM, 0.9), (OURS, 1.0), (PLAIN, 1.0)]
)
def test_files(weights: Path, tmp_path: Path, content: dict[str, Any], crop: float) -> None:
    path = tmp_path / "stated.json"
    path.write_text(json.dumps(content))
    found = loaded(weights, path)
    assert (found.mean, found.std, found.crop) == ((0.1, 0.2, 0.3), (0.4,) * 3, crop)
    assert found.size == (SIZE, SIZE)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ("imagnet", InputError, "'imagnet' is no file; valid: imagenet, half or a JSON file"),
        ({"mean": 0.5}, PreprocessingUnknown, "std is missing"),
        ({"crop": 0.5}, PreprocessingUnknown, "mean is missing"),
        ({"mean": [1, 2], "std": 1}, ConfigError, "mean has 2 numbers; valid: 1, or 3"),
        ({"mean": "x", "std": 1}, ConfigError, "mean 'x'; valid: a number"),
        ({"base": "half", "crop": 2}, ConfigError, r"crop 2.0 is not in \(0, 1\]"),
        ({"base": "half", "std": 0}, ConfigError, "not positive"),
        ({"base": "half", "interpolation": "cubic"}, VitlabError, "did you mean bicubic"),
        ({"means": 1}, VitlabError, "did you mean mean"),
    ],
)
def test_mistakes_are_one_line(
    weights: Path, given: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        loaded(weights, given)


def test_a_file_without_preprocessing_is_named(weights: Path, tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text('{"a": 1}')
    with pytest.raises(InputError, match=r"other.json: no preprocessing in it; valid"):
        loaded(weights, path)
    path.write_text('{"image_mean": [1], "resample": 99}')
    with pytest.raises(InputError, match=r"other\.json: not a preprocessing"):
        loaded(weights, path)


def test_options_state_the_same_again() -> None:
    given = {"base": "half", "mean": (0.1, 0.2, 0.3), "crop": 0.5}
    words = ["--preprocessing", "half", "--mean", "0.1,0.2,0.3", "--crop", "0.5"]
    assert list(as_options(given)) == words
    whole = vitlab.Preprocessing(size=(4, 4), mean=(0.1,), std=(0.2,), keep_aspect=False)
    options = dict(zip(*[iter(as_options(whole))] * 2, strict=True))
    base = options.pop("--preprocessing")
    fields = {key[2:]: value for key, value in options.items()}
    numbers = {key: float(fields[key]) for key in ("mean", "std", "crop")}
    again = read_stated({"base": base, **fields, **numbers})
    assert again.on(None, size=(4, 4), channels=1, name="mine") == whole


def test_finetune_evaluate_and_export_in_python(weights: Path, tmp_path: Path) -> None:
    draw = np.random.default_rng(random.randrange(99))
    data = (draw.integers(0, 256, (30, SIZE, SIZE, 3), np.uint8), np.arange(30) % 3)
    stated = {"mean": 0.25, "std": (0.5, 0.25, 0.125)}
    bundle = tmp_path / "bundle"
    vitlab.save_bundle(
        bundle,
        vitlab.create_model("vit_test", image_size=SIZE, classes=3),
        preprocessing=None,
        labels=list("abc"),
    )
    out = tmp_path / "run"
    steps = {"budget": 1, "budget_in": "steps"}
    with pytest.raises(PreprocessingUnknown, match="--preprocessing imagenet, half or FILE"):
        vitlab.finetune(bundle, data=data, out=out, changes=steps)
    vitlab.finetune(bundle, data=data, out=out, changes=steps, preprocessing=stated)
    tuned = vitlab.load(out).preprocessing
    assert (tuned.mean, tuned.std) == ((0.25,) * 3, (0.5, 0.25, 0.125))
    command = json.loads((out / "config.json").read_text())["command"]
    assert "--mean 0.25 --std 0.5,0.25,0.125" in command
    with pytest.raises(ConfigError, match="a resumed run keeps preprocessing"):
        vitlab.finetune(out=out, resume=True, preprocessing="half")
    assert vitlab.evaluate(out, data, preprocessing="half").outcome.logits.shape == (30, 3)
    pytest.importorskip("onnxscript")
    file = tmp_path / "model.onnx"
    vitlab.export(bundle, output=file, preprocessing="imagenet")
    assert vitlab.load(file, engine="auto").preprocessing.mean == IMAGENET_MEAN
