"""Models that a program has built: exported as they are, left as they were, nothing ignored."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

import vitlab
from exporting.exported import run_alone
from reference.random_weights import randomise
from vitlab import Preprocessing
from vitlab.classify.classifier import Classifier
from vitlab.errors import ConfigError, PreprocessingUnknown, VitlabError, WeightsError
from vitlab.jobs.export_model import open_exportable
from vitlab.models.variants import create_model
from vitlab.weights.bundle import save_bundle
from vitlab.weights.exported import read_metadata
from vitlab.weights.source import WeightSource

pytest.importorskip("onnxscript")
pytestmark = pytest.mark.usefixtures("no_type_checks")

SHAPE: dict[str, Any] = {"depth": 1, "classes": 3, "channels": 2, "image_size": (24, 40)}
LABELS = ("blue", "green", "red")
PREPARED = Preprocessing(size=(7, 7), crop=0.9, mean=(0.3, 0.4), std=(0.2, 0.25), white=1000.0)


def built(**changes: Any) -> Any:
    """A model as a training loop has it: no source, in training mode."""
    model: Any = create_model("vit_test", **SHAPE | changes)
    randomise(model)
    return model


def config_in(file: Path) -> Any:
    return json.loads(read_metadata(file)["vitlab"])


def test_a_model_without_a_source_needs_preprocessing(tmp_path: Path) -> None:
    model, file = built(), tmp_path / "a.onnx"
    assert model.source is None
    with pytest.raises(PreprocessingUnknown, match=r"pass preprocessing=Preprocessing\("):
        vitlab.export(model, output=file)
    assert not list(tmp_path.iterdir())
    vitlab.export(model, output=file, preprocessing=PREPARED, preprocess_inside=True)
    assert config_in(file)["preprocessing"] == PREPARED.resized((24, 40)).to_json()
    pixels = np.random.default_rng(0).integers(0, 256, (3, 2, 24, 40), dtype=np.uint8)
    mean, std = (torch.tensor(x)[:, None, None] for x in (PREPARED.mean, PREPARED.std))
    with torch.inference_mode():
        wanted = model.eval()((torch.from_numpy(pixels).float() / 255 - mean) / std)
    # Float32 against float32, of logits of about one.
    assert_allclose(run_alone(file, pixels, tmp_path), wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("task", ["single-label", "multi-label"])
def test_the_model_of_a_bundle_keeps_labels_and_preprocessing(task: str, tmp_path: Path) -> None:
    prepared = PREPARED.resized((24, 40))
    save_bundle(
        tmp_path / "bundle",
        built(),
        preprocessing=prepared,
        labels=LABELS,
        metrics={},
        provenance={"licence": "CC0-1.0"},
        task=task,
    )
    for name, model in {
        "loaded": vitlab.load(tmp_path / "bundle").model,
        "merging": vitlab.load(tmp_path / "bundle", merge_tokens=1).model,
        "weights": vitlab.load_weights(tmp_path / "bundle"),
        "created": vitlab.create_model(pretrained=tmp_path / "bundle"),
    }.items():
        found = open_exportable(model)
        assert found.content["labels"] == list(LABELS), name
        assert found.content["preprocessing"] == prepared.to_json(), name
        assert found.content["task"] == task, name
        if name == "merging":
            continue
        vitlab.save_weights(model, tmp_path / "saved.safetensors")
        again = vitlab.load(tmp_path / "saved.safetensors")
        assert (again.labels, again.preprocessing) == (LABELS, prepared), name
        assert (again.source.task, again.source.licence) == (task, "CC0-1.0"), name
    other = ("one", "two", "three")
    renamed = vitlab.load(tmp_path / "bundle", labels=other).model
    assert open_exportable(renamed).content["labels"] == list(other)


@pytest.mark.slow
def test_the_bundled_model_s_own_file(tmp_path: Path) -> None:
    classifier = vitlab.load("cifar10")
    vitlab.export(classifier.model, output=tmp_path / "a.onnx")
    exported = vitlab.load(tmp_path / "a.onnx", engine="onnxruntime")
    assert exported.labels == classifier.labels
    assert exported.preprocessing == classifier.preprocessing


@pytest.mark.parametrize("kind", ["module", "classifier", "name", "bundle"])
def test_what_the_model_does_not_say_can_be_told(kind: str, tmp_path: Path) -> None:
    model: Any = built()
    if kind == "classifier":
        model = Classifier(model, WeightSource(format="vitlab", path=Path("mine")))
    changes = SHAPE if kind == "name" else {}
    if kind == "bundle":
        place = tmp_path / "bundle"
        labels, prepared = ("a", "b", "c"), Preprocessing(size=(24, 40), mean=(0, 0), std=(1, 1))
        told: Any = {"preprocessing": prepared, "labels": labels, "metrics": {}, "provenance": {}}
        save_bundle(place, model, **told)
        model = place
    model = "vit_test" if kind == "name" else model
    found = open_exportable(model, preprocessing=PREPARED, labels=LABELS, **changes)
    assert found.preprocessing == PREPARED.resized((24, 40))
    assert found.content["preprocessing"] == found.preprocessing.to_json()
    assert found.content["labels"] == list(LABELS)


@pytest.mark.parametrize("inside", [False, True])
def test_weights_that_nothing_is_known_of_are_not_guessed(inside: bool, tmp_path: Path) -> None:
    classifier = Classifier(built(), WeightSource(format="timm", path=Path("mine")))
    with pytest.raises(PreprocessingUnknown, match=r"mine: .* in Python"):
        vitlab.export(classifier, output=tmp_path / "a.onnx", preprocess_inside=inside)


@pytest.mark.parametrize("wrap", [False, True])
@pytest.mark.parametrize("keyword", ["classes", "qunatize", "seed"])
def test_keywords_that_a_built_model_cannot_take_are_named(
    wrap: bool, keyword: str, tmp_path: Path
) -> None:
    model = built()
    source = WeightSource(format="vitlab", path=Path("mine"))
    given: Any = {keyword: 5}
    with pytest.raises(ConfigError) as caught:
        vitlab.export(
            Classifier(model, source) if wrap else model, output=tmp_path / "a.onnx", **given
        )
    assert str(caught.value) == (
        f"keyword '{keyword}': a model that is built already takes no changes of its config; "
        f"valid: a name, a file or a run, which take them"
    )
    assert not list(tmp_path.iterdir())


def test_a_seed_is_for_names_alone(tmp_path: Path) -> None:
    file = tmp_path / "a.safetensors"
    vitlab.save_weights(built(), file)
    with pytest.raises(VitlabError, match="unknown keyword 'seed'"):
        open_exportable(file, seed=3)
    one, other = (open_exportable("vit_test", seed=seed).model.state_dict() for seed in (0, 3))
    assert any((one[name] != other[name]).any() for name in one)


@pytest.mark.parametrize(
    ("told", "error", "message"),
    [
        (
            {"preprocessing": Preprocessing(size=(24, 40), mean=(0.5,) * 3, std=(0.5,) * 3)},
            ConfigError,
            "preprocessing of 3 channels for a model of 2; valid: mean and std of 2 numbers each",
        ),
        ({"labels": LABELS[:2]}, WeightsError, "labels: 2 labels for a model of 3 classes"),
    ],
)
def test_what_is_told_must_fit(told: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        open_exportable(built(), **{"preprocessing": PREPARED} | told)


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("wrap", [False, True])
def test_the_caller_s_model_stays_as_it_is(wrap: bool, kind: torch.dtype, tmp_path: Path) -> None:
    model = built().to(kind)
    given = Classifier(model, WeightSource(format="vitlab", path=Path("mine"))) if wrap else model
    model.train()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    loss = model(torch.randn(2, 2, 24, 40, dtype=kind)).square().sum()
    loss.backward()
    vitlab.export(given, output=tmp_path / "a.onnx", preprocessing=PREPARED)
    assert all(module.training for module in model.modules())
    for name, parameter in model.named_parameters():
        assert (parameter.dtype, parameter.requires_grad) == (kind, True)
        assert parameter.grad is not None
        assert torch.equal(parameter, state[name])


def test_a_copy_takes_no_memory_where_it_is_not_needed() -> None:
    model = built()
    copied = open_exportable(model, preprocessing=PREPARED).model
    assert copied is not model
    assert not copied.training
    for one, other in zip(model.parameters(), copied.parameters(), strict=True):
        assert one is not other
        assert one.data_ptr() == other.data_ptr()


def test_a_name_is_built_in_the_size_that_is_asked_for() -> None:
    found = open_exportable(
        "vit_b16", depth=1, width=24, heads=2, patch_size=12, image_size=(96, 168)
    )
    config: Any = found.model.config
    assert (config.patch_size, config.image_size, config.grid) == (12, (96, 168), (8, 14))
    assert found.preprocessing is not None
    assert found.preprocessing.size == (96, 168)
