"""Every command that takes a model takes the name of one inside the package."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from command import Command
from vitlab.jobs.finetune import finetune
from vitlab.jobs.plan import read_plan
from vitlab.jobs.train import train
from weights.bundles import LABELS, bundle_inside, make_bundle

NAME, SHORT = "vit_test.cifar10", "cifar10"


@pytest.fixture(autouse=True)
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The model, and a folder of the same name in the working directory with another one."""
    monkeypatch.chdir(tmp_path)
    make_bundle(tmp_path / SHORT)
    return bundle_inside(tmp_path / "bundled", monkeypatch)


@pytest.fixture
def image(tmp_path: Path) -> Path:
    pixels = np.random.default_rng(0).integers(0, 256, (41, 37, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "image.png")
    return tmp_path / "image.png"


def test_predict(command: Command, image: Path) -> None:
    by_name = [json.loads(command("predict", m, image, "--json").out) for m in (SHORT, NAME)]
    assert by_name[0] == by_name[1]
    assert len(by_name[0][0]["top"]) == 5
    (lying_there,) = json.loads(command("predict", f"./{SHORT}", image, "--json").out)
    assert lying_there["label"] in LABELS


def test_evaluate(command: Command) -> None:
    outcome = command("evaluate", SHORT, "--data", "sample", "--flip", "--json")
    found = json.loads(outcome.out)
    assert (found["model"], found["images"]) == (SHORT, 1000)
    assert found["flip"]["images"] == 1000


def test_info_and_summary(command: Command, inside: Path) -> None:
    for name in (SHORT, NAME):
        facts = json.loads(command("info", name, "--json").out)
        assert (facts["path"], facts["kind"]) == (str(inside), "bundle")
    assert json.loads(command("info", f"./{SHORT}", "--json").out)["labels"] == list(LABELS)
    whole = json.loads(command("summary", "vit_test", "--json").out)
    assert json.loads(command("summary", SHORT, "--json").out)["parameters"] == whole["parameters"]
    assert "did you mean cifar10" in command("summary", "cifar1").mistake


def test_features_know_it_by_its_whole_name(command: Command, image: Path, tmp_path: Path) -> None:
    output = tmp_path / "f.npz"
    assert command("features", SHORT, image, "--output", output).code == 0
    outcome = command("similar", output, image, "--json")
    assert outcome.code == 0, outcome
    told = json.loads(command("features", NAME, image, "--output", output, "--json").out)
    assert NAME in json.dumps(told)


def test_convert(command: Command, tmp_path: Path) -> None:
    target = tmp_path / "out.safetensors"
    outcome = command("convert", SHORT, target, "--format", "vitlab", "--json")
    assert json.loads(outcome.out)["source"] == SHORT
    assert json.loads(command("info", target, "--json").out)["labels"][0] == "airplane"


def test_finetune_and_resume(tmp_path: Path) -> None:
    changes = {"budget": 1.0, "budget_in": "steps", "evaluations": 1, "images_per_class": 5}
    out = tmp_path / "run"
    run = finetune(SHORT, data="sample", out=out, changes=changes, teacher=NAME)
    plan = read_plan(out)
    assert plan.start is not None
    assert (plan.start.weights, plan.start.teacher) == (NAME, NAME)
    assert f"--from {NAME} " in plan.command
    provenance = json.loads((run.bundle / "config.json").read_text())["provenance"]
    assert provenance["from"] == NAME
    # The plan names the model, which is found again; sums of floats may differ in the last bit.
    assert train(out=out, resume=True).metrics == pytest.approx(run.metrics, rel=1e-6)


def test_it_is_listed(command: Command, inside: Path) -> None:
    rows = command("weights", "list").out.splitlines()[2:]
    assert rows[0].split()[:3] == [NAME, "32", "cifar10"]
    assert rows[0].endswith(str(inside))
    entry = json.loads(command("weights", "list", "cifar10", "--json").out)[0]
    assert (entry["name"], entry["short_name"]) == (NAME, SHORT)
    assert entry["metrics"]["test_accuracy"] == 0.125
    assert "part of the package" in command("weights", "fetch", SHORT).mistake
    shown = command("models", "vit_test").out
    assert f"trained, inside the package: {SHORT} ({NAME});" in shown
    assert "inside the package" not in command("models", "cnn").out
    assert [row["name"] for row in json.loads(command("models", "cnn", "--json").out)] == [
        "cnn_tutorial"
    ]


def test_an_unknown_word_is_one_line(command: Command, image: Path) -> None:
    for arguments in (["predict", "cifar11", image], ["evaluate", "cifar11", "--data", "sample"]):
        assert "did you mean cifar10" in command(*arguments).mistake
    assert "valid: cifar10, vit_test.cifar10 (inside the package)" in command("info", "zzz").mistake
