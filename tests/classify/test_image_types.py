"""What counts as an image for a loaded model: anything else is a TypeError, never a record."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vitlab

PIXELS = np.random.default_rng(0).integers(0, 256, (35, 41, 3), np.uint8)


def content() -> bytes:
    stream = io.BytesIO()
    Image.fromarray(PIXELS).save(stream, "PNG")
    return stream.getvalue()


@pytest.fixture(scope="module", params=["torch", "onnxruntime"])
def model(request: pytest.FixtureRequest) -> Any:
    if request.param != "torch":
        pytest.importorskip(request.param)
    return vitlab.load("cifar10", engine=request.param)


@pytest.fixture(scope="module")
def torch_model() -> Any:
    return vitlab.load("cifar10")


def test_one_image_in_every_form(model: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(content())
    forms: list[Any] = [str(path), path, Image.fromarray(PIXELS), PIXELS, content()]
    forms += [bytearray(content()), memoryview(content()), io.BytesIO(content())]
    wanted = model.predict(PIXELS)[0].top
    for form in forms:
        for given in (form, [form], (form,), iter([form])):
            (found,) = model.predict(given)
            assert found.top == wanted, type(form)
    assert len(model.predict([PIXELS[..., 0], PIXELS])) == 2
    assert model.predict([]) == []


WRONG: dict[str, Any] = {
    "CHW tensor": torch.zeros(3, 35, 41),
    "HWC tensor": torch.from_numpy(PIXELS),
    "CHW array": PIXELS.transpose(2, 0, 1),
    "CHW or HWC array": PIXELS[:3, :, :],
    "batch": PIXELS[None],
    "empty array": PIXELS[:0],
    "two bands": PIXELS[..., :2],
    "float array": PIXELS / 255,
    "bool array": PIXELS > 9,
    "uint32 array": PIXELS.astype(np.uint32),
    "int32 array of 8 bits": PIXELS.astype(np.int32),
    "float": 0.5,
    "int": 7,
    "None": None,
    "dict": {"a.png": 1},
    "file": io.BufferedReader(io.BytesIO(content())),
    "list of lists": [["a.png"]],
    "list of numbers": [1, 2],
    "image and None": [PIXELS, None],
    "generator": (number for number in (1, 2)),
}


@pytest.mark.parametrize("name", WRONG)
def test_anything_else_is_a_type_error(model: Any, name: str, no_type_checks: None) -> None:
    with pytest.raises(TypeError, match="valid: "):
        model.predict(WRONG[name])


@pytest.mark.parametrize("name", [name for name in WRONG if name != "generator"])
@pytest.mark.parametrize("ask", ["features", "explain", "explain_many"])
def test_of_every_function(torch_model: Any, ask: str, name: str, no_type_checks: None) -> None:
    call: Callable[..., Any] = getattr(torch_model, ask)
    with pytest.raises(TypeError, match="valid: "):
        call(WRONG[name])


def test_bytes_for_features_and_maps(torch_model: Any, no_type_checks: None) -> None:
    model = torch_model
    assert np.array_equal(model.features(content()), model.features(PIXELS))
    assert np.array_equal(model.explain(content()).map, model.explain(PIXELS).map)
    with pytest.raises(TypeError, match=r"\[B, C, H, W\]"):
        model.probabilities([PIXELS])


def test_what_cannot_be_read_stays_a_record(model: Any) -> None:
    broken, good = model.predict([b"no image", content()])
    assert (broken.error is None, good.error) == (False, None)


def test_preprocessing_takes_no_tensor(torch_model: Any, no_type_checks: None) -> None:
    with pytest.raises(TypeError, match="valid: a path"):
        torch_model.preprocessing.apply(torch.zeros(3, 8, 8))
