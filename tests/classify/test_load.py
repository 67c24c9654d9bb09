"""`vitlab.load` with an engine: the same answers, and one line about what an engine cannot do."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import vitlab
from jobs.classifiers import saved_model
from vitlab.classify.classifier import Classifier
from vitlab.weights.resolve import bundled_folder

ROOT = Path(__file__).resolve().parents[2]
PICTURES = [np.random.default_rng(n).integers(0, 256, (35, 41, 3), np.uint8) for n in range(3)]


@pytest.mark.parametrize("engine", ["auto", "onnxruntime", "openvino"])
def test_every_engine_answers_as_torch_does(engine: str) -> None:
    pytest.importorskip("onnxruntime" if engine == "auto" else engine)
    found = vitlab.load("cifar10", engine=engine)
    assert found.exported is not None
    assert found.engine == found.exported.engine != "torch"
    plain = vitlab.load("cifar10")
    assert (found.labels, found.preprocessing) == (plain.labels, plain.preprocessing)
    for pictures in (PICTURES, PICTURES[0]):
        ours, wanted = found.predict(pictures, top=3), plain.predict(pictures, top=3)
        assert [p.label for p in ours] == [p.label for p in wanted]
        assert [p.probability for p in ours] == pytest.approx(
            [p.probability for p in wanted], rel=1e-4
        )


def test_auto_is_torch_where_there_is_no_file(tmp_path: Path) -> None:
    found = vitlab.load(
        saved_model(tmp_path / "a.safetensors"), engine="auto", labels=("a", "b", "c")
    )
    assert isinstance(found, Classifier)
    assert found.labels == ("a", "b", "c")
    assert found.features(PICTURES).shape[0] == 3


def test_an_exported_file_is_loaded() -> None:
    pytest.importorskip("onnxruntime")
    folder = bundled_folder("cifar10")
    assert folder is not None
    found = vitlab.load(
        folder / "model.onnx", engine="onnxruntime", labels=[f"c{n}" for n in range(10)]
    )
    assert found.predict(PICTURES[0], top=10)[0].label in found.labels
    assert found.labels[3] == "c3"


def test_what_an_engine_cannot_do_is_one_line() -> None:
    pytest.importorskip("onnxruntime")
    found = vitlab.load("cifar10", engine="onnxruntime")
    for name in ("features", "explain", "explain_many"):
        with pytest.raises(vitlab.VitlabError) as caught:
            getattr(found, name)(PICTURES[0])
        assert str(caught.value) == (
            f"{name} needs the inside of a model, and the engine onnxruntime only predicts; "
            f'valid: the weights with engine="torch"'
        )
    with pytest.raises(vitlab.VitlabError, match="unknown engine 'abacus'"):
        vitlab.load("cifar10", engine="abacus")


def test_the_file_is_loaded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = pytest.importorskip("onnxruntime")
    opened = []

    def session(*given: Any, **options: Any) -> Any:
        opened.append(given[0])
        return real(*given, **options)

    real = runtime.InferenceSession
    monkeypatch.setattr(runtime, "InferenceSession", session)
    model = vitlab.load("cifar10", engine="onnxruntime")
    for picture in PICTURES:
        model.predict(picture)
    assert len(opened) == 1


def test_torch_is_not_imported() -> None:
    pytest.importorskip("onnxruntime")
    code = (
        "import sys, numpy, vitlab\n"
        "model = vitlab.load('cifar10', engine='onnxruntime')\n"
        "assert model.predict(numpy.zeros((32, 32, 3), numpy.uint8))[0].error is None\n"
        "sys.exit('torch' in sys.modules)\n"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    assert subprocess.run([sys.executable, "-c", code], env=environment).returncode == 0


@pytest.fixture
def counted(tmp_path: Path) -> tuple[Classifier, list[int]]:
    """A classifier, and a number for every forward pass: how many images it was of."""
    classifier = vitlab.load(saved_model(tmp_path / "a.safetensors"))
    return classifier, count(classifier)


def count(classifier: Classifier) -> list[int]:
    seen: list[int] = []
    stem = next(iter(classifier.model.children()))
    stem.register_forward_pre_hook(lambda module, given: seen.append(len(given[0])))
    return seen


def test_a_prediction_is_one_forward(counted: tuple[Classifier, list[int]]) -> None:
    classifier, seen = counted
    classifier.predict(PICTURES[0])
    assert seen == [1]  # not even the first time is more computed
    classifier.predict(PICTURES)
    assert seen == [1, 1, 1, 3]  # two of a blank image, which tell how much memory one takes
    for _ in range(2):
        classifier.predict(PICTURES)
    assert seen[4:] == [3, 3]


def test_another_model_is_measured_anew(
    counted: tuple[Classifier, list[int]], tmp_path: Path
) -> None:
    classifier, seen = counted
    before = classifier.predictor().engine.batch_size
    classifier.model.double()
    assert classifier.predictor().engine.batch_size < before
    assert len(seen) == 4
    classifier.model = vitlab.load(saved_model(tmp_path / "b.safetensors")).model
    assert classifier.predictor().engine.batch_size == before
    assert classifier.predict(torch.zeros(32, 32, 3).byte().numpy())[0].error is None
