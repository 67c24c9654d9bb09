"""Each kind of data, end to end: the model learns, is judged, predicts, and has a page."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from jobs.made_tables import digits, eights, write_angles, write_pairs
from runs import weights_of
from vitlab.classify.classifier import load
from vitlab.data.augment.config import AugmentConfig
from vitlab.data.augment.draws import draw
from vitlab.data.datasets import open_data
from vitlab.data.loader import BatchMaker
from vitlab.data.order import generator
from vitlab.errors import ConfigError, DataError, VitlabError
from vitlab.evaluation.classification import Evaluation
from vitlab.evaluation.multilabel import MultiLabelEvaluation
from vitlab.evaluation.regression import RegressionEvaluation
from vitlab.jobs.evaluate import evaluate, report_of
from vitlab.jobs.run_result import RunResult
from vitlab.jobs.train import train
from vitlab.jobs.training_run import Watcher
from vitlab.registry import DATASETS
from vitlab.report.run import render

SMALL: dict[str, Any] = {
    "model": "vit_test",
    "changes": {"pool": "mean"},
    "batch_size": 32,
    "budget_in": "steps",
    "augment.flip": "none",
    "augment.shift": 1,
    "optimizer.name": "adamw",
    "optimizer.lr": 3e-3,
    "evaluations": 2,
}


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    """Two digits an image."""
    folder = tmp_path_factory.mktemp("several")
    write_pairs(folder / "pairs", {"train": 600, "test": 150})
    shape = {"model.image_size": "8x16", "model.patch_size": 4}
    changes = SMALL | shape | {"budget": 120.0, "batch_size": 64, "optimizer.name": "muon"}
    return train(data=folder / "pairs", out=folder / "run", changes=changes)


@pytest.fixture(scope="module")
def angles(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    """Turned sevens."""
    folder = tmp_path_factory.mktemp("angles")
    write_angles(folder / "angles", {"train": 400, "test": 150})
    changes = SMALL | {"model.image_size": 16, "model.patch_size": 4, "budget": 120.0}
    return train(data=folder / "angles", out=folder / "run", changes=changes)


def data_of(run: RunResult, name: str) -> Path:
    return run.folder.parent / name


def test_several_labels_are_learned(several: RunResult) -> None:
    found = several.evaluation
    assert isinstance(found, MultiLabelEvaluation)
    assert found.labels == ("0", "1", "2", "3", "4")
    # Answers that know nothing reach the share of images with a label, about a third.
    assert found.chance < 0.4
    assert found.interval[0] > 0.6
    assert several.metrics["test_map"] == found.map


@pytest.mark.slow
def test_an_angle_is_learned(angles: RunResult) -> None:
    found = angles.evaluation
    assert isinstance(found, RegressionEvaluation)
    angle = found.values[0]
    # Always saying the mean is off by 30 degrees on average.
    assert 25 < angle.mean_mae < 35
    assert angle.mae_interval[1] < 0.6 * angle.mean_mae
    assert angle.r2 is not None
    assert angle.r2 > 0.6


@pytest.fixture
def rare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eights, which are twenty times rarer than other digits."""
    made = replace(
        open_data("digits"),
        labels=("other", "eight"),
        open_train=lambda: eights("train"),
        open_test=lambda: eights("test"),
    )
    monkeypatch.setitem(DATASETS._entries, "rare", lambda: made)


@pytest.mark.parametrize("balance", ["loss", "sampling"])
def test_rare_classes_are_learned(rare: None, tmp_path: Path, balance: str) -> None:
    changes = SMALL | {"model.image_size": 8, "model.patch_size": 2, "budget": 150.0}
    changes |= {"balance": balance, "batch_size": 64, "hold_out": 0.2}
    found = train(data="rare", out=tmp_path / "run", changes=changes).evaluation
    assert isinstance(found, Evaluation)
    # Always the frequent class: balanced accuracy 0.5 and no eight found. Without balance, a run
    # of this length does exactly that.
    assert found.balanced is not None
    assert found.balanced > 0.7
    recall = found.classes[1].recall
    assert recall is not None
    assert recall > 0.5


def test_values_come_in_their_unit(angles: RunResult) -> None:
    classifier = load(angles.folder)
    images, numbers = digits("test")
    upright = Image.fromarray(images[numbers == 7][0]).resize((16, 16), Image.Resampling.BICUBIC)
    turned = [classifier.predict(upright.rotate(a))[0] for a in (-50, 0, 50)]
    values = [prediction.value for prediction in turned if prediction.value is not None]
    assert len(values) == 3
    assert values == sorted(values)
    assert values[2] - values[0] > 40
    assert turned[0].top == (("value", values[0]),)
    assert (turned[0].label, turned[0].probability) == (None, None)


def test_the_bundle_says_what_it_is(several: RunResult, angles: RunResult) -> None:
    config = json.loads((angles.bundle / "config.json").read_text())
    assert (config["task"], config["labels"]) == ("regression", ["value"])
    assert abs(config["targets"]["mean"][0]) < 10
    assert 30 < config["targets"]["std"][0] < 40
    config = json.loads((several.bundle / "config.json").read_text())
    assert config["task"] == "multi-label"
    assert set(config["metrics"]) == {"test_images", "test_map", "test_loss", "validation_map"}
    assert len(config["preprocessing"]["mean"]) == 1


def test_labels_are_those_above_the_threshold(several: RunResult) -> None:
    images, numbers = digits("test")
    picture = np.hstack([images[numbers == n][0] for n in (0, 1)])
    classifier = load(several.folder)
    everything = classifier.predict(picture, threshold=0.0, top=1)[0]
    assert {label for label, _ in everything.top} == set("01234")
    chances = [probability for _, probability in everything.top]
    assert chances == sorted(chances, reverse=True)
    between = (chances[1] + chances[2]) / 2
    some = classifier.predict(picture, threshold=between)[0]
    assert some.top == everything.top[:2]
    assert (some.label, some.probability) == some.top[0]
    nothing = classifier.predict(picture, threshold=1.0)[0]
    assert (nothing.label, nothing.top, nothing.error) == (None, (), None)


@pytest.mark.parametrize("kind", ["several", "angles"])
def test_evaluating_again_gives_the_same_figures(kind: str, request: pytest.FixtureRequest) -> None:
    run: RunResult = request.getfixturevalue(kind)
    data = data_of(run, "pairs" if kind == "several" else "angles")
    found = evaluate(run.folder, data)
    assert found.evaluation.to_dict() == run.evaluation.to_dict()
    for html in (render(report_of(found)), run.report.read_text()):
        assert html.count("<img") > 5
        assert not re.search(r"\bnan\b", re.sub(r"base64,[^\"]*", "", html))
    loaded = evaluate(run.bundle / "model.safetensors", data).evaluation
    assert loaded.to_dict() == run.evaluation.to_dict()


def test_values_that_the_data_lacks_are_not_judged(angles: RunResult, tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    shutil.copytree(angles.bundle, bundle)
    config = json.loads((bundle / "config.json").read_text())
    config["labels"], config["model"]["classes"] = ["value", "weight"], 2
    del config["files"]
    tensors = load_file(bundle / "model.safetensors")
    tensors |= {
        name: tensors[name].repeat_interleave(2, 0) for name in ("head.weight", "head.bias")
    }
    save_file(tensors, bundle / "model.safetensors")
    (bundle / "config.json").write_text(json.dumps(config))
    with pytest.raises(DataError, match="no value 'weight', which the model predicts; valid: data"):
        evaluate(bundle, data_of(angles, "angles"))


def test_data_of_another_task_is_refused(several: RunResult, angles: RunResult) -> None:
    with pytest.raises(DataError, match="multi-label data, the model a regression one"):
        evaluate(angles.folder, data_of(several, "pairs"))
    with pytest.raises(VitlabError, match="a temperature says nothing"):
        evaluate(angles.folder, data_of(angles, "angles"), temperature=True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"augment.cutmix": 1.0}, "augment.cutmix=1.0: a piece of an image"),
        ({"balance": "loss"}, "balance=loss is for classes"),
        ({"balance": "sampling"}, "balance=sampling is for classes"),
        ({"balance": "both"}, "expected one of none, loss, sampling"),
    ],
)
def test_what_makes_no_sense_for_values_is_refused_before_anything_is_written(
    angles: RunResult, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        train(data=data_of(angles, "angles"), out=tmp_path / "run", changes=SMALL | changes)
    assert not (tmp_path / "run").exists()


def test_a_missing_file_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_text("path,label\na.png,x\nb.png,y\n")
    with pytest.raises(DataError, match=r"labels.csv, line 2: no such file: a.png"):
        train(data=tmp_path / "labels.csv", out=tmp_path / "run", changes=SMALL)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("kind", ["npy", "rgba"])
def test_other_channels_are_trained_and_predicted(tmp_path: Path, kind: str) -> None:
    """Two classes that only the last channel tells apart."""
    draw = np.random.default_rng(0)
    channels = 5 if kind == "npy" else 4
    for label in ("dark", "bright"):
        (tmp_path / "data" / label).mkdir(parents=True)
        for number in range(40):
            image = draw.integers(0, 256, (8, 8, channels)).astype(np.uint8)
            image[..., -1] = image[..., -1] // 4 + 190 * (label == "bright")
            file = tmp_path / "data" / label / f"{number}"
            if kind == "npy":
                np.save(file, image.astype(np.uint16) * 40)
            else:
                Image.fromarray(image, "RGBA").save(f"{file}.png")
    changes = SMALL | {"model.image_size": 8, "model.patch_size": 4, "budget": 25.0}
    if kind == "rgba":
        changes["model.channels"] = "4"
    told: list[str] = []
    watcher = Watcher(note=told.append)
    run = train(data=tmp_path / "data", out=tmp_path / "run", changes=changes, watcher=watcher)
    assert isinstance(run.evaluation, Evaluation)
    assert run.evaluation.accuracy > 0.9
    classifier = load(run.folder)
    assert classifier.preprocessing.channels == channels
    assert told[0].startswith(f"Images of {channels} channels")
    if kind == "npy":
        assert classifier.preprocessing.white is not None
        assert 9000 < classifier.preprocessing.white <= 255 * 40
    files = sorted((tmp_path / "data" / "bright").iterdir())
    assert {p.label for p in classifier.predict(files)} == {"bright"}
    again = evaluate(run.folder, tmp_path / "data").evaluation
    assert isinstance(again, Evaluation)
    assert torch.equal(again.confusion, run.evaluation.confusion)


def test_a_balanced_run_resumes_where_it_was(rare: None, tmp_path: Path) -> None:
    changes = SMALL | {
        "model.image_size": 8,
        "model.patch_size": 4,
        "budget": 8.0,
        "checkpoint_every": 4,
        "keep": 9,
        "balance": "sampling",
    }
    whole = train(data="rare", out=tmp_path / "run", changes=changes)
    weights = weights_of(whole.folder)
    (tmp_path / "run" / "checkpoints" / "step-00000008.safetensors").unlink()
    again = train(out=tmp_path / "run", resume=True)
    assert weights_of(again.folder) == weights


def test_names_of_channels_must_fit_named_data(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"model.channels 3; digits has 1"):
        train(data="digits", out=tmp_path / "run", changes=SMALL | {"model.channels": 3})


def test_targets_are_mixed_by_share() -> None:
    maker = BatchMaker(config=AugmentConfig(mixup=1.0), seed=0, mean=(0.0,), std=(1.0,), classes=3)
    bright = torch.tensor([0, 0, 100, 100], dtype=torch.uint8)
    images, numbers = bright[:, None, None, None].expand(4, 1, 2, 2), torch.arange(4)
    values = bright[:, None].float() / 255
    draws = draw(maker.config, 4, generator(0, "augment", 0))
    batch = maker.make(images, values, index=numbers, epoch=numbers, draws=draws)
    # The value is the brightness, so that whatever is mixed keeps being right.
    torch.testing.assert_close(batch.targets[:, 0], batch.images[:, 0, 0, 0])
    assert len(batch.targets.unique()) > 2
    marks = torch.stack([bright > 0, bright == 0], dim=1)
    mixed = maker.make(images, marks, index=numbers, epoch=numbers, draws=draws).targets
    share = batch.images[:, 0, 0, 0] * 2.55
    torch.testing.assert_close(mixed, torch.stack([share, 1 - share], dim=1))
