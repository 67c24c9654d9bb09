"""`vitlab weights`, and every command that takes the name of fetched weights."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from command import Command
from data.server import Served
from vitlab import save_weights
from vitlab.io import download as downloading
from vitlab.weights import resolve
from vitlab.weights.hub_models import hub_models
from vitlab.weights.labels import imagenet_labels
from vitlab.weights.resolve import Checkpoint, checkpoints, known_licence
from weights.published import FILE, publish, small_model


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VITLAB_WEIGHTS", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(downloading, "PAUSE", 0.0)
    monkeypatch.setattr(resolve, "FOLDER", tmp_path / "no models inside the package")
    return tmp_path / "home"


@pytest.fixture
def demo(served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Checkpoint:
    return publish(served, tmp_path, monkeypatch)


@pytest.fixture
def image(tmp_path: Path) -> Path:
    pixels = np.random.default_rng(0).integers(0, 256, (41, 37, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "image.png")
    return tmp_path / "image.png"


def test_list_has_every_name(command: Command, home: Path) -> None:
    lines = command("weights", "list").out.splitlines()[2:]
    assert [line.split()[0] for line in lines] == [*checkpoints(), *hub_models()]
    assert not home.exists()
    line = next(line for line in lines if line.startswith("vit_b16.torchvision "))
    assert line.split() == (
        ["vit_b16.torchvision", "224", "imagenet-1k", "330.285", "MiB", "c867db91"]
        + ["BSD-3-Clause", "no", "-"]
    )


def test_list_has_models_on_the_hub(command: Command) -> None:
    (found,) = json.loads(command("weights", "list", "*dinov3-vitb16*", "--json").out)
    assert found["name"] == "hf:facebook/dinov3-vitb16-pretrain-lvd1689m"
    assert found["url"] == "https://huggingface.co/facebook/dinov3-vitb16-pretrain-lvd1689m"
    assert (found["gated"], found["licence"]) == ("yes", "dinov3-license")
    assert found["size"] is found["sha256"] is found["path"] is None
    mistake = command("weights", "fetch", found["name"]).mistake
    assert mistake.endswith(f"is on the hub; valid: vitlab pull {found['name']}")


def test_list_takes_a_pattern(command: Command) -> None:
    found = json.loads(command("weights", "list", "vit_s14*", "--json").out)
    assert [entry["name"] for entry in found] == ["vit_s14.dinov2", "vit_s14.dinov2_reg4"]
    assert "unknown weights 'resnet'" in command("weights", "list", "resnet").mistake


def test_list_for_programs(command: Command, demo: Checkpoint) -> None:
    (before,) = json.loads(command("weights", "list", demo.name, "--json").out)
    assert before["path"] is before["pinned"] is None
    assert (before["url"], before["model"]) == (demo.url, "vit_test")
    assert before["preprocessing"]["mean"] == [0.5, 0.5, 0.5]
    path = json.loads(command("weights", "fetch", demo.name, "--json").out)["path"]
    (after,) = json.loads(command("weights", "list", demo.name, "--json").out)
    assert after["path"] == path
    assert after["pinned"]["bytes"] == Path(path).stat().st_size
    assert path in command("weights", "list").out


def test_fetch_tells_what_it_does(command: Command, demo: Checkpoint, home: Path) -> None:
    outcome = command("weights", "fetch", demo.name)
    assert outcome.code == 0
    assert outcome.out.startswith(f"{demo.name} is in {home / demo.name / FILE} (")
    assert "no checksum is published: pinned to sha256 " in outcome.out
    assert f"{demo.name}: from 127.0.0.1" in outcome.err
    assert "100 %" in outcome.err
    again = command("weights", "fetch", demo.name)
    assert again.out == f"{demo.name} is already in {home / demo.name / FILE}\n"


def test_a_name_that_is_not_there(command: Command, demo: Checkpoint) -> None:
    mistake = command("weights", "fetch", "vit_test.dmo").mistake
    assert mistake == "unknown weights 'vit_test.dmo'; did you mean vit_test.demo?"


def test_a_server_that_fails_is_one_line(
    command: Command, demo: Checkpoint, served: Served, home: Path
) -> None:
    served.files.clear()
    outcome = command("weights", "fetch", demo.name)
    assert (outcome.code, outcome.out) == (2, "")
    error = outcome.err.splitlines()[-1]
    assert error == (
        f"error: {demo.name} could not be fetched from {demo.url}: HTTP 404 Not Found; "
        "a file that was downloaded elsewhere can be passed by its path instead of the name"
    )
    assert not (home / demo.name).exists()


@pytest.mark.parametrize("name", ["summary", "predict"])
def test_weights_that_are_not_fetched_are_told(
    command: Command, demo: Checkpoint, image: Path, name: str
) -> None:
    arguments = (name, demo.name, *([image] if name == "predict" else []))
    assert command(*arguments).mistake == (
        f"{demo.name} has not been fetched; get it: vitlab weights fetch {demo.name}"
    )


@pytest.mark.parametrize(("dataset", "classes"), [("imagenet-1k", 1000), (None, 0)])
def test_info_works_before_fetching(command: Command, dataset: str | None, classes: int) -> None:
    found = next(each for each in checkpoints().values() if each.dataset == dataset)
    facts = json.loads(command("info", found.name, "--json").out)
    assert (facts["kind"], facts["licence"], facts["name"]) == (
        *("published", found.licence),
        found.name,
    )
    assert facts["model"]["classes"] == classes
    assert facts["labels"] == (list(imagenet_labels()) if classes else None)
    assert facts["files"] == []
    out = command("info", found.name).out
    assert f"vitlab weights fetch {found.name}" in out
    assert re.search(rf"licence +{re.escape(found.licence)}", out)


def test_files_with_a_published_name_have_its_licence() -> None:
    for found in checkpoints().values():
        assert known_licence(found.remote.name) == found.licence
    assert known_licence("mine.pth") is None


def test_the_bundled_model_states_its_licence(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    facts = json.loads(command("info", "cifar10", "--json").out)
    assert facts["licence"] == "Apache-2.0"


def test_fetched_weights_are_used_by_name(
    command: Command, demo: Checkpoint, image: Path, tmp_path: Path
) -> None:
    assert command("weights", "fetch", demo.name).code == 0
    facts = json.loads(command("info", demo.name, "--json").out)
    assert (facts["name"], facts["licence"]) == (demo.name, "Apache-2.0")
    assert facts["labels"] == list(imagenet_labels())
    assert facts["preprocessing"]["keep_aspect"] is False
    assert re.search(r"licence +Apache-2\.0", command("info", demo.name).out)
    summed = json.loads(command("summary", demo.name, "--json").out)
    assert summed["parameters"] == sum(p.numel() for p in small_model().parameters())
    (found,) = json.loads(command("predict", demo.name, image, "--json").out)
    assert found["label"] in imagenet_labels()
    target = tmp_path / "out.safetensors"
    assert command("convert", demo.name, target, "--format", "timm").code == 0
    (converted,) = json.loads(command("predict", target, image, "--json").out)
    assert converted["label"] == found["label"]


def test_labels_by_name_or_file(command: Command, image: Path, tmp_path: Path) -> None:
    path = tmp_path / "mine.safetensors"
    model = small_model()
    save_weights(model, path)
    options = ("--set", "image_size=32", "--labels")
    assert "nothing says how images" in command("predict", path, image, *options[:2]).mistake
    few = tmp_path / "few.txt"
    few.write_text("a\nb\n")
    mistake = command("predict", path, image, *options, few).mistake
    assert f"{few}: 2 labels for a model of 1000 classes" in mistake
    mistake = command("predict", path, image, *options, "imagenet1k").mistake
    assert "did you mean imagenet-1k" in mistake


def test_finetune_fetches_what_is_missing(
    command: Command, demo: Checkpoint, tmp_path: Path, home: Path
) -> None:
    arguments = ("finetune", "--from", demo.name, "--data", "digits", "--steps", 1)
    out = ("--out", tmp_path / "run")
    assert "has not been fetched" in command(*arguments, *out).mistake
    outcome = command(*arguments, *out, "--download")
    assert outcome.code == 0, outcome
    assert (home / demo.name / FILE).is_file()
    assert f"{FILE}: " in outcome.out
    assert "bytes fetched" in outcome.out
    assert "fetched" not in command(*arguments, "--out", tmp_path / "two", "--download").out


@pytest.mark.parametrize("name", ["digits", "cifar100"])
def test_model_and_data_that_are_swapped_give_a_hint(
    command: Command, tmp_path: Path, name: str
) -> None:
    for given in ("vit_ti16", "vit_ti16.deit"):
        options = ("--from", name, "--data", given, "--out", tmp_path / "run")
        mistake = command("finetune", *options).mistake
        assert mistake.startswith(f"unknown model '{name}'")
        assert "it is a dataset: are model and data swapped?" in mistake
    mistake = command("evaluate", name, "--data", "digits").mistake
    assert "it is a dataset: are model and data swapped?; valid: " in mistake
    weights = tmp_path / "mine.safetensors"
    save_weights(small_model(), weights)
    mistake = command("train", "--data", weights, "--out", tmp_path / "run").mistake
    assert mistake.startswith(f"{weights} is a model, not data")
