"""Models inside the package: what their names mean, and how they come to be there."""

import os
import shutil
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import torch

import vitlab
from command import script
from vitlab.errors import UnknownName, WeightsError
from vitlab.models.variants import variant
from vitlab.weights import resolve
from vitlab.weights.bundle import load_bundle, read_bundle_config
from vitlab.weights.resolve import bundled_models, bundled_name, bundled_names, locate, named
from weights.bundles import bundle_inside, edit_config, make_bundle, small_model

NAME, SHORT = "vit_test.cifar10", "cifar10"
SPENT = {"steps": 10, "images_seen": 160, "pflops": 1e-6, "minutes": 0.5}


@pytest.fixture
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return bundle_inside(tmp_path / "bundled", monkeypatch)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with another model in a folder of the same name."""
    monkeypatch.chdir(tmp_path)
    return make_bundle(tmp_path / SHORT, small_model())


@pytest.mark.parametrize("word", [NAME, SHORT])
def test_a_word_means_the_model_inside(inside: Path, here: Path, word: str) -> None:
    assert locate(word) == inside
    assert bundled_name(word) == NAME
    assert named(word) is None
    classifier = vitlab.load(word)
    assert classifier.labels[0] == "airplane"
    assert torch.equal(vitlab.load_weights(word).head.weight, classifier.model.head.weight)
    again = vitlab.create_model("vit_test", pretrained=word, classes=3)
    assert again.config.classes == 3


@pytest.mark.parametrize("path", [f"./{SHORT}", Path(SHORT), Path(f"./{SHORT}")])
def test_a_path_means_what_lies_there(inside: Path, here: Path, path: Any) -> None:
    assert vitlab.load(path).labels == ("ash", "birch", "cedar")
    assert vitlab.load(os.path.abspath(path)).labels == ("ash", "birch", "cedar")


def test_without_a_model_inside_a_word_is_a_path(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resolve, "FOLDER", tmp_path / "nothing")
    assert bundled_names() == ()
    assert vitlab.load(SHORT).labels == ("ash", "birch", "cedar")
    shutil.rmtree(here)
    with pytest.raises(WeightsError, match="unknown model 'cifar10', and no such file or folder"):
        vitlab.load(SHORT)


def test_half_a_folder_is_no_model(inside: Path) -> None:
    (inside / "config.json").unlink()
    (inside.parent / "vit_test").mkdir()  # no data in its name
    assert bundled_models() == {}


def test_of_two_models_of_one_dataset_the_first_has_its_name(inside: Path) -> None:
    second = make_bundle(inside.parent / "vit_zest.cifar10", small_model())
    assert bundled_names() == (SHORT, NAME, second.name)
    assert (locate(SHORT), locate(second.name)) == (inside, second)
    assert resolve.short_name(second.name) is None


def test_half_precision_becomes_float32(inside: Path) -> None:
    whole = vitlab.load(NAME).model.state_dict()
    tool = script("bundle-model")
    content, tensors = read_bundle_config(inside), tool.halved(whole)
    tool.write(inside.parent / "vit_test.half", content, tensors)
    half = vitlab.load("half").model.state_dict()
    assert {tensor.dtype for tensor in half.values()} == {torch.float32}
    for name, tensor in whole.items():
        assert torch.equal(half[name], tensor.half().float()), name


def test_a_misspelt_word_is_told_what_there_is(inside: Path) -> None:
    with pytest.raises(WeightsError, match=r"unknown model 'cifra10'.*did you mean cifar10"):
        vitlab.load("cifra10")
    with pytest.raises(WeightsError, match=r"valid: cifar10, vit_test.cifar10 \(inside the pack"):
        vitlab.load_weights("qqqq")
    with pytest.raises(UnknownName, match=r"'vit_test.cifar'; did you mean vit_test.cifar10"):
        vitlab.load("vit_test.cifar")


def test_what_is_shipped_can_be_read() -> None:
    """Holds for no model, too: what counts is that none is broken or of two meanings."""
    short = [word for name in bundled_models() if (word := resolve.short_name(name))]
    assert len(set(short)) == len(short)
    for name in bundled_models():
        folder = bundled_models()[name]
        script("bundle-model").check_content(folder, read_bundle_config(folder))
        assert (folder / "model.safetensors").stat().st_size <= 8_000_000
        assert vitlab.load(name).labels


def test_each_model_is_as_accurate_on_the_sample_as_its_metrics_say() -> None:
    for name in bundled_models():
        found = vitlab.evaluate(name, data="sample").evaluation
        assert found.images == 1000
        stated = read_bundle_config(bundled_models()[name])["metrics"]["test_accuracy"]
        # Three standard deviations of 1,000 images.
        assert (
            abs(found.figures["accuracy"] - stated) < 3 * (stated * (1 - stated) / 1000) ** 0.5
        ), name


def test_the_plain_model_has_the_architecture_of_the_paper() -> None:
    config = vitlab.load("vit_plain.cifar10").model.config
    plain = replace(config, dynamic_size=False, image_size=32)
    assert plain == variant("vit_plain")
    assert (config.stem, config.position, config.pool) == ("patch", "learned1d", "cls")
    folder = bundled_models()["vit_plain.cifar10"]
    assert sum(file.stat().st_size for file in folder.iterdir()) < 4_000_000


@pytest.fixture
def run(inside: Path, tmp_path: Path) -> Path:
    """A run that has ended with that model, and a package without models."""
    folder = tmp_path / "run" / "bundle"
    folder.parent.mkdir()
    inside.rename(folder)
    provenance = read_bundle_config(folder)["provenance"] | SPENT
    edit_config(folder, provenance=provenance)
    return folder.parent


def test_a_run_becomes_a_model_inside(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert script("bundle-model").main([str(run), NAME]) == 0
    assert f"vitlab evaluate {NAME} --data cifar10" in capsys.readouterr().out
    folder = tmp_path / "bundled" / NAME
    assert sorted(os.listdir(folder.parent)) == [NAME]
    assert sorted(os.listdir(folder)) == ["config.json", "model.safetensors"]
    before, after = (read_bundle_config(place) for place in (run / "bundle", folder))
    assert after["provenance"].pop("stored_as") == "float16"
    assert before.pop("files") != after.pop("files")
    assert after == before
    weights = {
        place: (place / "model.safetensors").stat().st_size for place in (run / "bundle", folder)
    }
    assert weights[folder] < 0.65 * weights[run / "bundle"]
    one, other = (load_bundle(place)[0].state_dict() for place in (run / "bundle", folder))
    for name, tensor in one.items():
        assert torch.equal(other[name], tensor.half().float()), name
    assert "exists; --force replaces it" in mistake(run, NAME, capsys)
    assert script("bundle-model").main([str(run), NAME, "--force"]) == 0
    assert "'cifar10' means vit_test.cifar10 and would mean vit_s16.cifar10" in mistake(
        run, "vit_s16.cifar10", capsys
    )


def mistake(run: Path, name: str, capsys: pytest.CaptureFixture[str]) -> str:
    """The one line with which the script refuses."""
    capsys.readouterr()
    assert script("bundle-model").main([str(run), name]) == 2
    written = capsys.readouterr()
    assert written.out == ""
    assert written.err.count("\n") == 1
    return written.err


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"labels": None}, "has no labels"),
        ({"preprocessing": None}, "has no preprocessing"),
        ({"metrics": {"test_images": 10}}, "has no metrics.test_accuracy"),
        ({"provenance": {"model": "vit_test"}}, "has no provenance.recipe"),
    ],
)
def test_what_does_not_tell_everything_is_refused(
    run: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], told: str
) -> None:
    edit_config(run / "bundle", **changes)
    assert told in mistake(run, NAME, capsys)
    assert bundled_models() == {}


@pytest.mark.parametrize("key", ["recipe", "seed", "pflops", "minutes", "vitlab", "command"])
def test_no_provenance_is_lost(run: Path, capsys: pytest.CaptureFixture[str], key: str) -> None:
    provenance = read_bundle_config(run / "bundle")["provenance"]
    edit_config(run / "bundle", provenance={k: v for k, v in provenance.items() if k != key})
    assert f"has no provenance.{key}" in mistake(run, NAME, capsys)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("cifar10", "is not MODEL.DATA"),
        ("vit_tset.cifar10", "is not MODEL.DATA with a model of"),
        ("vit_s16.cifar10", "the model of the run is 'vit_test'"),
        ("vit_test.cifar100", "the data of the run is 'cifar10'"),
    ],
)
def test_a_name_tells_the_truth(
    run: Path, capsys: pytest.CaptureFixture[str], name: str, told: str
) -> None:
    assert told in mistake(run, name, capsys)


def test_too_large_is_refused_and_leaves_nothing(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = script("bundle-model")
    monkeypatch.setattr(tool, "LARGEST", 1000)
    assert tool.main([str(run), NAME]) == 2
    assert "valid: at most 1,000" in capsys.readouterr().err
    assert os.listdir(tmp_path / "bundled") == []


def test_numbers_that_half_precision_cannot_hold_are_refused(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tool = script("bundle-model")
    with pytest.raises(WeightsError, match=r"head\.bias has 70000, more than float16 can hold"):
        tool.halved({"count": torch.tensor(10**9), "head.bias": torch.tensor([1.0, -7e4])})


def test_the_wheel_takes_the_folder_along() -> None:
    """Hatch takes every file of the package that git does not ignore."""
    root = Path(vitlab.__file__).resolve().parents[2]
    assert resolve.FOLDER.relative_to(root / "src") == Path("vitlab", "bundled")
    assert 'wheel]\npackages = ["src/vitlab"]' in (root / "pyproject.toml").read_text()
    parts = ("bundled", "bundled/", NAME, "model.safetensors", "config.json")
    for line in (root / ".gitignore").read_text().splitlines():
        assert not any(fnmatch(part, line) for part in parts), line
