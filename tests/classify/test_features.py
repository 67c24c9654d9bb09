"""`Classifier.features`: the model's own features of images in any form."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from data.colours import saved_model, small_model, write_colours
from vitlab import load
from vitlab.classify.classifier import Classifier
from vitlab.errors import InputError


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    return sorted(write_colours(tmp_path / "colours", {"a": 3}).rglob("*.png"))


@pytest.mark.parametrize("kind", ["pooled", "cls", "patches"])
@pytest.mark.parametrize("layer", [None, 0, -1])
@pytest.mark.parametrize("batch_size", [1, 4, 99])
def test_features_are_the_models(
    files: list[Path], tmp_path: Path, kind: str, layer: int | None, batch_size: int
) -> None:
    classifier = load(saved_model(tmp_path / "model.safetensors"))
    pixels = torch.from_numpy(np.stack([classifier.preprocessing.apply(file) for file in files]))
    with torch.inference_mode():
        whole = classifier.model.features(pixels, layers=[0, 1])
    tokens = whole if layer is None else whole.layers[layer % 2]
    expected = tokens.patches if kind == "patches" else tokens.cls
    found = classifier.features(files, kind=kind, layer=layer, batch_size=batch_size)
    assert found.dtype == np.float32
    # Another batch size sums in another order.
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-5)


def test_one_image_in_any_form(files: list[Path], tmp_path: Path) -> None:
    classifier = load(saved_model(tmp_path / "model.safetensors"))
    with Image.open(files[0]) as image:
        forms = [files[0], str(files[0]), image.copy(), np.asarray(image)]
    found = [classifier.features(form) for form in forms]
    assert found[0].shape == (1, 32)
    assert all(np.array_equal(found[0], other) for other in found)


def test_a_model_without_head_or_with_one_of_zeros_has_features(files: list[Path]) -> None:
    for model in (small_model(classes=0), small_model()):
        if model.head is not None:
            torch.nn.init.zeros_(model.head.weight)
        found = Classifier(model, model.source).features(files)
        assert found.shape == (len(files), 32)


def test_mistakes(files: list[Path], tmp_path: Path) -> None:
    classifier = load(saved_model(tmp_path / "model.safetensors"))
    (tmp_path / "broken.png").write_bytes(b"no image")
    with pytest.raises(InputError, match=r"broken.png: not an image of a known format"):
        classifier.features([files[0], tmp_path / "broken.png"])
    with pytest.raises(InputError, match="no image; valid: at least 1"):
        classifier.features([])
    with pytest.raises(InputError, match="batch_size 0"):
        classifier.features(files, batch_size=0)
    with pytest.raises(InputError, match="layer 2 does not exist; valid: -2 to 1"):
        classifier.features(files, layer=2)
