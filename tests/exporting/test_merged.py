"""Exported models that merge tokens: plain ONNX Runtime gives what the merging model gives."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose

import vitlab
from exporting.exported import expected, made, random_pixels, run_alone
from jobs.classifiers import colours
from vitlab.classify.classifier import Classifier, open_classifier
from vitlab.errors import InputError, WeightsError
from vitlab.jobs.predict import predict
from vitlab.models.merging import merging
from vitlab.weights.exported import read_export_metadata, read_metadata

pytest.importorskip("onnxscript")
pytestmark = pytest.mark.usefixtures("no_type_checks")

R = 3
# Float32 against float64, of logits of about one.
CLOSE: dict[str, Any] = {"atol": 1e-5, "rtol": 1e-5}
# Every way in which a merged token is read: its place, its size in scores and in the mean.
SHAPE: dict[str, Any] = {
    "depth": 2,
    "image_size": (40, 56),
    "position": "rope",
    "registers": 2,
    "pool": "mean",
    "classes": 7,
}


@pytest.fixture(scope="module")
def model() -> Any:
    return made(**SHAPE)


@pytest.fixture(scope="module")
def file(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    import jaxtyping

    path = tmp_path_factory.mktemp("merged") / "merged.onnx"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jaxtyping.config, "jaxtyping_disable", True)
        found = vitlab.export(model, output=path, merge_tokens=R)
    assert found.described.facts.merge_tokens == R
    assert 0 < found.comparison.largest < 1e-4
    return path


def merged(model: Any) -> Any:
    net = merging(model, R)
    net.source = model.source
    return net


def test_onnx_runtime_alone_gives_the_answers(model: Any, file: Path, tmp_path: Path) -> None:
    pixels = random_pixels(model, 5)
    # A flat patch is as like its left neighbour as its right one: a tie that rounding must not
    # decide. One image is flat all over, one has an object on a white ground.
    pixels[1] = 255
    pixels[2, :, :20] = 255
    found = run_alone(file, pixels, tmp_path)
    assert_allclose(found, expected(merged(model), pixels), **CLOSE)
    assert np.abs(found - expected(model, pixels)).max() > 1e-2
    assert_allclose(run_alone(file, pixels[1:2], tmp_path), found[1:2], **CLOSE)


def test_only_standard_operators_are_used(file: Path) -> None:
    import onnx

    stored = onnx.load(str(file))
    assert {node.domain for node in stored.graph.node} == {""}
    assert {entry.domain for entry in stored.opset_import} <= {""}
    assert not stored.functions
    told = read_export_metadata(read_metadata(file), "merged.onnx")
    assert told.facts.merge_tokens == R


def test_every_engine_runs_it(model: Any, file: Path) -> None:
    photos = sorted(colours(file.parent / "photos", 2).iterdir())
    wanted = Classifier(merged(model), model.source).predict(photos, top=7)
    for engine in ("auto", "onnxruntime", "openvino"):
        if engine == "openvino":
            pytest.importorskip("openvino")
        (batch,) = open_classifier(file, engine=engine).predictor().stream(photos, top=7)
        for ours, theirs in zip(batch, wanted, strict=True):
            assert dict(ours.top) == pytest.approx(dict(theirs.top), rel=1e-4)
    labels = []
    predict(file, photos, merge_tokens=R, each=lambda found: labels.append(found.label))
    assert labels == [found.label for found in wanted]
    with pytest.raises(WeightsError, match=f"exported with merge_tokens {R}, not 8; `vitlab expo"):
        predict(file, photos, merge_tokens=8)


def test_a_program_of_torch_merges_too(model: Any, tmp_path: Path) -> None:
    classifier = Classifier(model, model.source, merge_tokens=R)
    path = tmp_path / "merged.pt2"
    found = vitlab.export(classifier, output=path, format="torch-export")
    assert found.described.facts.merge_tokens == R
    assert found.comparison.largest < 1e-4


@pytest.mark.slow
def test_a_file_in_8_bits_merges_too(model: Any, tmp_path: Path) -> None:
    path = tmp_path / "int8.onnx"
    found = vitlab.export(model, output=path, quantize="int8", merge_tokens=R)
    assert (found.described.facts.merge_tokens, found.described.facts.quantize) == (R, "int8")
    assert open_classifier(path, merge_tokens=R).engine == "onnxruntime"


@pytest.mark.slow
def test_a_compiled_package_merges_too(model: Any, tmp_path: Path) -> None:
    path = tmp_path / "merged.pt2"
    found = vitlab.export(model, output=path, format="aoti", merge_tokens=R)
    assert found.comparison.largest < 1e-4
    assert open_classifier(path, merge_tokens=R).engine == "aoti"


@pytest.mark.parametrize("position", ["relative", "relative_bias"])
def test_models_that_cannot_merge_are_one_line(position: str, tmp_path: Path) -> None:
    path = tmp_path / "a.onnx"
    with pytest.raises(InputError) as caught:
        vitlab.export(made(position=position, depth=1), output=path, merge_tokens=R)
    assert str(caught.value) == (
        f"merge_tokens {R}: position '{position}' is about the offset between two patches; valid: "
        f"0, or a Vision Transformer with full attention and positions that are added, rotary or "
        f"none"
    )
    assert not list(tmp_path.iterdir())
