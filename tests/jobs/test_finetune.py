"""Fine-tuning: what starts from the weights, what is left alone, and what comes out."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from jobs.classifiers import LABELS, saved_model
from vitlab import Preprocessing, create_model, load, load_weights, save_weights
from vitlab.config import override
from vitlab.data.augment.config import AugmentConfig
from vitlab.data.datasets import open_data
from vitlab.errors import ConfigError, DataError, Interrupted, WeightsError
from vitlab.jobs import start as start_module
from vitlab.jobs import train as train_module
from vitlab.jobs.finetune import finetune
from vitlab.jobs.run_result import RunResult
from vitlab.jobs.start import Start, open_teacher
from vitlab.jobs.train import train
from vitlab.jobs.training_run import TrainingRun, Watcher
from vitlab.models.cost import cost
from vitlab.training.loop import fit
from vitlab.training.recipes import finetune as recipes

CLASSES = ("circle", "square")


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    return saved_model(tmp_path / "weights.safetensors")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two classes that differ in brightness."""
    random = np.random.default_rng(0)
    for split, count in (("train", 24), ("val", 6)):
        for number, name in enumerate(CLASSES):
            place = tmp_path / "data" / split / name
            place.mkdir(parents=True)
            for i in range(count):
                pixels = random.integers(0, 100, (40, 44, 3), dtype=np.uint8) + 120 * number
                Image.fromarray(pixels.astype(np.uint8)).save(place / f"{i}.png")
    return tmp_path / "data"


def tune(weights: Path, folder: Path, out: Path, **settings: Any) -> RunResult:
    changes = {"budget": 6.0, "budget_in": "steps", "evaluations": 2}
    changes |= settings.pop("changes", {})
    return finetune(weights, data=folder, out=out, changes=changes, **settings)


def state(run: Path) -> dict[str, torch.Tensor]:
    return load(run).model.state_dict()


def test_a_bundle_with_the_folders_labels_and_the_weights_preprocessing(
    weights: Path, folder: Path, tmp_path: Path
) -> None:
    notes: list[str] = []
    run = tune(weights, folder, tmp_path / "run", watcher=Watcher(note=notes.append))
    found = load(run.bundle)
    assert found.labels == CLASSES
    assert found.preprocessing.mean == (0.5, 0.5, 0.5)
    assert run.split == "test"
    assert run.evaluation.images == 12
    assert any("48 images, 24 per class" in note for note in notes)
    assert any("held out" in note for note in notes)
    config = json.loads((run.bundle / "config.json").read_text())
    assert config["provenance"]["from"] == str(weights)
    assert config["provenance"]["recipe"] == "finetune"
    plan = json.loads((run.folder / "config.json").read_text())
    assert plan["train"]["head_first"] > 0
    assert plan["train"]["optimizer"]["layer_decay"] < 1
    assert "vitlab finetune --from" in plan["command"]


def test_the_end_of_a_run_is_shown_in_stages(weights: Path, folder: Path, tmp_path: Path) -> None:
    stages: list[tuple[str, int, int]] = []
    watcher = Watcher(stage=lambda *stage: stages.append(stage))
    run = tune(weights, folder, tmp_path / "run", watcher=watcher)
    held_out = run.counts["validation"].images
    assert [stage for stage in stages if stage[1] == stage[2]] == [
        ("evaluating trained weights", held_out, held_out),
        ("evaluating averaged weights", held_out, held_out),
        ("testing", 12, 12),
        ("calibrating", held_out, held_out),
        ("exporting", 1, 1),
        ("writing the report", 1, 1),
    ]
    assert [name for name, done, _ in stages if not done] == list(
        dict.fromkeys(s[0] for s in stages)
    )


def test_it_learns(weights: Path, folder: Path, tmp_path: Path) -> None:
    changes = {"budget": 30.0, "optimizer.lr": 3e-3, "augment.color_jitter": 0.0}
    run = tune(weights, folder, tmp_path / "run", changes=changes)
    assert run.evaluation.accuracy == 1.0  # two levels of brightness; guessing gives a half


def test_an_early_stop_gives_its_reason(
    weights: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    falling = (1 / (1 + i) for i in range(100))
    measure = lambda model: iter([("accuracy", next(falling))])  # noqa: E731
    monkeypatch.setattr(TrainingRun, "evaluator", lambda run, stage=None: measure)
    notes: list[str] = []
    changes = {"budget": 20.0, "evaluations": 20, "patience": 2, "ema": 0.0}
    watcher = Watcher(note=notes.append)
    run = tune(weights, folder, tmp_path / "run", changes=changes, watcher=watcher)
    reason = re.compile(
        r"topped after step (\d+) of 20: 2 evaluations at a low learning rate were worse than "
        r"step \d+ by more than chance \(patience 2\)"
    )
    [found] = [match for note in notes if (match := reason.search(note))]
    assert int(found[1]) == run.compute.steps == 13  # warm-up 2, half of the fall 9, and 2 more
    assert found[0] in run.report.read_text()


@pytest.mark.parametrize("ruined", [True, False])
def test_the_report_says_whether_it_helped(
    weights: Path, folder: Path, tmp_path: Path, ruined: bool
) -> None:
    changes: dict[str, Any] = {"budget": 30.0, "optimizer.lr": 3e-3, "augment.color_jitter": 0.0}
    known = tune(weights, folder, tmp_path / "known", changes=changes)
    assert "before step 1" not in known.report.read_text()  # of a head that knew nothing
    notes: list[str] = []
    changes = {"optimizer.lr": 1.0 if ruined else 1e-6, "ema": 0.0, "head_first": 0.0}
    changes["optimizer.clip_norm"] = 0.0
    settings: dict[str, Any] = {"changes": changes, "watcher": Watcher(note=notes.append)}
    run = tune(known.folder, folder, tmp_path / "again", **settings)
    rows = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    first = {row["name"]: row["value"] for row in rows if row["step"] == 0}
    assert first["accuracy"] == 1.0
    page = run.report.read_text()
    if ruined:
        sentence = (
            "nothing beat the weights before step 1 on held-out images "
            f"(accuracy 100.0%, loss {first['loss']:.3f}): they are kept"
        )
        assert sentence in notes
        assert sentence[1:] in page
        assert "weights were kept" not in page
        before, after = state(known.folder), state(run.folder)
        assert all(torch.equal(before[name], after[name]) for name in before)
    else:
        [note] = [note for note in notes if "before fine-tuning" in note]
        assert f"accuracy 100.0%, loss {first['loss']:.3f} before fine-tuning, accuracy" in note
        assert note[1:] in page


def test_classes_that_the_weights_know_are_kept(folder: Path, tmp_path: Path) -> None:
    """The same classes in another order and under other spellings, but for one."""
    path = saved_model(tmp_path / "known.safetensors")
    (folder / "train" / "circle").rename(folder / "train" / "Red")
    (folder / "val" / "circle").rename(folder / "val" / "Red")
    notes: list[str] = []
    watch = Watcher(note=notes.append)
    changes: dict[str, Any] = {"optimizer.lr": 1e-9, "ema": 0.0}
    run = tune(path, folder, tmp_path / "run", changes=changes, watcher=watch)
    assert "1 of 2 classes are known to the weights by name (Red): kept" in notes
    before, after = load_weights(path).head, load(run.folder).model.head
    assert before is not None
    red = before.weight[2]  # of blue, green, red
    torch.testing.assert_close(after.weight, torch.stack([red, 0 * red]), atol=1e-6, rtol=0)
    changes["batch_size"] = 32
    paper = tune(path, folder, tmp_path / "paper", paper=True, changes=changes)
    assert load(paper.folder).model.head.weight.abs().max() < 1e-6


def test_a_linear_probe_leaves_all_else_alone(weights: Path, folder: Path, tmp_path: Path) -> None:
    before = load_weights(weights).state_dict()
    after = state(tune(weights, folder, tmp_path / "run", linear_probe=True).folder)
    for name, value in after.items():
        if name.startswith("head."):
            assert value.abs().max() > 0
        else:
            assert torch.equal(value, before[name]), name


@pytest.mark.parametrize("freeze", [0, 1, 5])
def test_frozen_blocks_are_named(freeze: int) -> None:
    found = recipes.Situation(images=90, classes=3, parameters=10**6, side=224, accelerated=False)
    config = replace(recipes.finetuning(found), frozen_blocks=freeze)
    named = f"frozen: the stem, and blocks 1 to {freeze} of the encoder"
    assert (named in recipes.reasons(config, found)) == bool(freeze)


@pytest.mark.parametrize(("side", "per_class"), [(32, 24), (64, 5000), (65, 24), (224, 5000)])
def test_small_images_are_neither_cropped_nor_painted(side: int, per_class: int) -> None:
    found = recipes.Situation(
        images=7 * per_class, classes=7, parameters=10**6, side=side, accelerated=False
    )
    config = recipes.finetuning(found)
    reasons = recipes.reasons(config, found)
    plain = config.augment == AugmentConfig(shift=side // 8, flip="random")
    assert plain == (side <= 64)
    assert ("images are small" in reasons[0]) == plain
    assert (config.augment.random_resized_crop is None) == plain


def test_what_is_told_is_what_is_done() -> None:
    found = recipes.Situation(
        images=700, classes=7, parameters=2 * 10**6, side=224, accelerated=False
    )
    config = recipes.finetuning(found)
    told = recipes.reasons(config, found)
    assert told[1] == "batches of 32; 40 epochs, about 788 updates"
    assert (
        told[2] == "2 M parameters: learning rate 0.0005 for the head, "
        "0.75 times that for each layer below"
    )
    wishes = {
        "batch_size": 50,
        "budget": 3.0,
        "budget_in": "steps",
        "augment.flip": "none",
        "optimizer.layer_decay": 1.0,
        "head_first": 0.0,
        "patience": 0,
    }
    told = recipes.reasons(override(config, wishes), found)
    assert told == (
        "700 images: augmentation as it was set",
        "batches of 50; 3 updates",
        "2 M parameters: learning rate 0.0005 for the head and everything else",
        "10% held out decides which weights are kept",
    )
    assert recipes.reasons(recipes.with_lora(config, 4), found)[2] == (
        "updates of rank 4 and the head learn"
    )


def test_a_linear_probe_leaves_batch_norms_alone(folder: Path, tmp_path: Path) -> None:
    stem: dict[str, Any] = {"conv_norm": "batch", "conv_strides": (2, 4), "conv_widths": (5,)}
    path = saved_model(tmp_path / "conv.safetensors", stem="conv", **stem)
    before = load_weights(path).state_dict()
    after = state(tune(path, folder, tmp_path / "run", linear_probe=True).folder)
    assert any("running_mean" in name for name in after)
    for name, value in after.items():
        assert name.startswith("head.") or torch.equal(value, before[name]), name


def test_frozen_blocks_stay(weights: Path, folder: Path, tmp_path: Path) -> None:
    before = load_weights(weights).state_dict()
    run = tune(weights, folder, tmp_path / "run", freeze=1, changes={"ema": 0.0})
    after = state(run.folder)
    assert torch.equal(after["stem.proj.weight"], before["stem.proj.weight"])
    for name in ("attention.qkv.weight", "mlp.fc1.weight"):
        assert torch.equal(after[f"encoder.blocks.0.{name}"], before[f"encoder.blocks.0.{name}"])
        assert not torch.equal(
            after[f"encoder.blocks.1.{name}"], before[f"encoder.blocks.1.{name}"]
        )


def test_lora_is_merged_into_a_plain_model(weights: Path, folder: Path, tmp_path: Path) -> None:
    before = load_weights(weights).state_dict()
    after = state(tune(weights, folder, tmp_path / "run", lora=2).folder)
    assert list(after) == list(before)
    name = "encoder.blocks.1.attention.qkv.weight"
    change = (after[name] - before[name]).double()
    assert change.abs().max() > 0
    assert torch.linalg.matrix_rank(change, rtol=1e-3) <= 2
    assert torch.equal(after["encoder.norm.weight"], before["encoder.norm.weight"])


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"lora": 2},
        {"linear_probe": True},
        {"sam": 0.05},
        {"changes": {"ema": 0.9, "augment.mixup": 0.5}},
    ],
    ids=["all", "lora", "probe", "sam", "mixup"],
)
def test_resuming_ends_at_the_same_weights(
    weights: Path,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, Any],
) -> None:
    changes = {"checkpoint_every": 1, "head_first": 0.4} | settings.pop("changes", {})
    whole = tune(weights, folder, tmp_path / "whole", changes=changes, **settings)

    def interrupted(*arguments: Any, **keywords: Any) -> None:
        fit(*arguments, **keywords | {"watch": stop_after_two})

    def stop_after_two(metric: Any) -> None:
        if metric["step"] > 2:
            raise Interrupted(15, 2, 6)

    with monkeypatch.context() as patch:
        patch.setattr(train_module, "fit", interrupted)
        with pytest.raises(Interrupted):
            tune(weights, folder, tmp_path / "cut", changes=changes, **settings)
    weights.unlink()  # the checkpoint has all that is needed
    resumed = train(out=tmp_path / "cut", resume=True)
    assert resumed.metrics == whole.metrics
    first, second = state(whole.folder), state(resumed.folder)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_other_sizes(weights: Path, folder: Path, tmp_path: Path) -> None:
    run = tune(weights, folder, tmp_path / "run", image_size=(40, 24))
    found = load(run.bundle)
    assert found.model.config.image_size == (40, 24)
    assert found.preprocessing.size == (40, 24)


def test_a_batch_size_that_is_found(weights: Path, folder: Path, tmp_path: Path) -> None:
    notes: list[str] = []
    watcher = Watcher(note=notes.append)
    run = tune(weights, folder, tmp_path / "run", changes={"batch_size": "auto"}, watcher=watcher)
    plan = json.loads((run.folder / "config.json").read_text())
    assert f"batch size {plan['train']['batch_size']}, the largest" in " ".join(notes)


def test_the_papers_protocol(weights: Path, folder: Path, tmp_path: Path) -> None:
    run = tune(weights, folder, tmp_path / "run", paper=True, changes={"batch_size": 32})
    plan = json.loads((run.folder / "config.json").read_text())["train"]
    assert plan["optimizer"] | {"name": "sgd", "momentum": 0.9} == plan["optimizer"]
    assert plan["optimizer"]["weight_decay"] == 0
    assert plan["schedule"]["kind"] == "cosine"


def test_weights_images_and_teacher_are_opened_once(
    weights: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    teacher = tune(weights, folder, tmp_path / "teacher").bundle
    opened: list[str] = []

    def counted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **keywords: Any) -> Any:
            opened.append(name)
            return function(*arguments, **keywords)

        return call

    def open_counted(*arguments: Any, **keywords: Any) -> Any:
        source = open_data(*arguments, **keywords)
        return replace(source, open_train=counted("images", source.open_train))

    monkeypatch.setattr(start_module, "load_weights", counted("weights", load_weights))
    monkeypatch.setattr(start_module, "load", counted("teacher", load))
    monkeypatch.setattr(train_module, "open_data", open_counted)
    tune(weights, folder, tmp_path / "run", teacher=teacher)
    assert sorted(opened) == ["images", "teacher", "weights"]


def test_a_teacher_changes_what_is_learned(weights: Path, folder: Path, tmp_path: Path) -> None:
    taught_by = tune(weights, folder, tmp_path / "teacher").bundle
    alone = tune(weights, folder, tmp_path / "alone")
    taught = tune(weights, folder, tmp_path / "taught", teacher=taught_by)
    heads = [state(run.folder)["head.weight"] for run in (alone, taught)]
    assert not torch.equal(*heads)
    # The teacher is a model of the same shape: one more pass for each image.
    extra = taught.compute.flops - alone.compute.flops
    assert extra == alone.compute.images * cost(load(taught_by).model).flops
    several = saved_model(tmp_path / "several.safetensors", task="multi-label")
    with pytest.raises(ConfigError, match=r"teacher .*several.* is multi-label; valid for a"):
        tune(weights, folder, tmp_path / "wrong", teacher=several)
    bands = Preprocessing(size=(8, 8), mean=(0.5,) * 5, std=(0.5,) * 5)
    data = replace(open_data(folder), labels=LABELS)
    start = Start(weights="", preprocessing=bands, teacher=str(weights))
    with pytest.raises(ConfigError, match=r"reads 3 channels, and the images have 5; valid"):
        open_teacher(start, data, torch.device("cpu"))
    with pytest.raises(ConfigError, match=r"teacher .* does not know circle, square"):
        tune(weights, folder, tmp_path / "wrong", teacher=weights)
    assert not (tmp_path / "wrong").exists()


def test_the_rate_is_found_and_drawn(weights: Path, folder: Path, tmp_path: Path) -> None:
    notes: list[str] = []
    watcher = Watcher(note=notes.append)
    muon = {"optimizer.name": "muon", "optimizer.muon_lr": 0.03}
    run = tune(weights, folder, tmp_path / "run", changes=muon, find_lr=True, watcher=watcher)
    usual = tune(weights, folder, tmp_path / "usual", changes=muon)
    found, given = (
        json.loads((place / "config.json").read_text())["train"]["optimizer"]
        for place in (run.folder, usual.folder)
    )
    assert f"range test: learning rate {found['lr']:g} (find-lr.png)" in notes
    assert found["lr"] != given["lr"]
    assert found["muon_lr"] == pytest.approx(0.03 * found["lr"] / given["lr"])  # in proportion
    with Image.open(run.folder / "find-lr.png") as picture:
        assert picture.width > 500


def test_assumptions_about_the_weights_are_logged(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = create_model("vit_test", classes=3, width=64, heads=2)
    path = tmp_path / "theirs" / "vit.pth"
    path.parent.mkdir()
    save_weights(model, path, format="timm")
    stored = torch.load(path, weights_only=True)  # without our note
    torch.save({k: v for k, v in stored.items() if isinstance(v, torch.Tensor)}, path)
    (path.parent / "preprocessor_config.json").write_text(
        json.dumps({"size": 32, "image_mean": [0.5] * 3, "image_std": [0.5] * 3, "resample": 3})
    )
    tune(path, folder, tmp_path / "run")
    assert any("heads 1: head width 64" in record.getMessage() for record in caplog.records)
    assert load(tmp_path / "run").preprocessing.mean == (0.5, 0.5, 0.5)


def test_without_held_out_images_nobody_is_patient(
    weights: Path, folder: Path, tmp_path: Path
) -> None:
    run = tune(weights, folder, tmp_path / "run", changes={"hold_out": "0"})
    plan = json.loads((run.folder / "config.json").read_text())["train"]
    assert (plan["hold_out"], plan["patience"]) == (0.0, 0)
    with pytest.raises(ConfigError, match="patience needs hold_out"):
        tune(weights, folder, tmp_path / "no", changes={"hold_out": 0.0, "patience": 3})


def test_a_licence_is_handed_on(folder: Path, tmp_path: Path) -> None:
    few = {"model": "vit_test", "budget": 2.0, "budget_in": "steps", "batch_size": 10}
    out = tmp_path / "first"
    run = train(data=folder, out=out, changes=few, licence="CC-BY-NC-4.0")
    assert load(run.folder).source.licence == "CC-BY-NC-4.0"
    assert load_weights(run.folder).source.licence == "CC-BY-NC-4.0"  # a run is a file, too
    again = tune(run.folder, folder, tmp_path / "again")
    content = json.loads((again.bundle / "config.json").read_text())
    assert content["provenance"]["licence"] == "CC-BY-NC-4.0"
    own = tune(run.folder, folder, tmp_path / "own", licence="MIT")
    content = json.loads((own.bundle / "config.json").read_text())
    assert content["provenance"]["licence"] == "MIT"


def test_a_run_and_a_bundle_can_be_started_from(
    weights: Path, folder: Path, tmp_path: Path
) -> None:
    first = tune(weights, folder, tmp_path / "first")
    for number, start in enumerate((first.folder, first.bundle)):
        again = tune(start, folder, tmp_path / f"again{number}")
        assert load(again.bundle).labels == CLASSES


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lora": 2, "linear_probe": True}, "lora and linear_probe exclude each other"),
        ({"freeze": 9}, "frozen_blocks 9; the model has 2 blocks"),
        ({"changes": {"model": "vit_b16"}}, "model vit_b16: the weights decide the model"),
        ({"changes": {"bugdet": 2}}, "unknown .*bugdet"),
    ],
)
def test_mistakes_are_told_and_nothing_is_written(
    weights: Path, folder: Path, tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        tune(weights, folder, tmp_path / "run", **settings)
    assert not (tmp_path / "run").exists()


def test_weights_and_data_must_be_there(weights: Path, folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no weights; pass --from"):
        finetune(None, data=folder, out=tmp_path / "run")
    with pytest.raises(WeightsError):
        finetune(tmp_path / "gone.npz", data=folder, out=tmp_path / "run")
    with pytest.raises((ConfigError, DataError)):
        finetune(weights, data=tmp_path / "gone", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
