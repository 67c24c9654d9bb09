"""The runner: order, resuming, failures, stopping, and what is left in the folder."""

import csv
import json
import math
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from experiments.tiny import CHANGES, LABELS, registered, source, study
from vitlab.classify.classifier import load
from vitlab.config import from_dict, to_dict
from vitlab.data.images import ArraySet
from vitlab.errors import ConfigError, DataError, ExperimentStopped, UnknownName
from vitlab.experiments import run as running
from vitlab.experiments import training
from vitlab.experiments.context import Context, flops_per_step
from vitlab.experiments.folder import exact_command
from vitlab.experiments.probes import probe
from vitlab.experiments.run import StopNow, experiment
from vitlab.experiments.spec import Arm, Axis
from vitlab.experiments.training import halve, images_of_classes, part
from vitlab.jobs.plan import read_plan
from vitlab.jobs.train import train
from vitlab.jobs.training_run import Watcher, open_images
from vitlab.models.config import ViTConfig
from vitlab.registry import DATASETS
from vitlab.training.recipes.from_scratch import recipe

ROOT = Path(__file__).parents[2]


@pytest.fixture
def data() -> Iterator[str]:
    with registered() as name:
        yield name


@pytest.fixture
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing is what costs most here."""
    monkeypatch.setattr(running, "draw", lambda found: {})


def test_every_arm_and_seed_once_and_all_that_is_left(
    tmp_path: Path, data: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    titles: list[str] = []

    @contextmanager
    def watching(title: str) -> Iterator[Watcher]:
        titles.append(title)
        yield Watcher()

    settings: dict[str, Any] = {"out": tmp_path, "data": data, "watching": watching}
    found = experiment(study(), seeds=2, **settings)
    # One seed of every arm first: cut short, it is still balanced.
    assert titles == [
        *("[1 of 4] plain, seed 0", "[2 of 4] fast, seed 0"),
        *("[3 of 4] plain, seed 1", "[4 of 4] fast, seed 1"),
    ]
    assert [(r.arm, r.seed, r.steps, r.images) for r in found.results] == [
        ("plain", 0, 4, 35), ("fast", 0, 4, 35), ("plain", 1, 4, 35), ("fast", 1, 4, 35)
    ]  # fmt: skip
    assert all(sum(r.bits or ()) / r.images == r.value for r in found.results)
    assert all(r.pflops > 0 and r.minutes > 0 and r.parameters > 0 for r in found.results)
    (gap,) = found.differences
    assert gap.mean == pytest.approx(found.summaries["fast"].mean - found.summaries["plain"].mean)

    names = {path.name for path in tmp_path.iterdir()}
    drawn = {f"{name}.{kind}" for name in ("accuracy", "differences") for kind in ("png", "svg")}
    files = {"report.html", "results.csv", "results.json", "differences.csv", "experiment.json"}
    assert names == {*drawn, *files, "arms", ".lock"}
    with (tmp_path / "results.csv").open(newline="") as file:
        assert [float(row["value"]) for row in csv.DictReader(file)] == [
            r.value for r in found.results
        ]
    stored = json.loads((tmp_path / "results.json").read_text())
    assert stored == json.loads(json.dumps(found.to_dict()))
    page = (tmp_path / "report.html").read_text()
    assert "arms/fast/seed-1/report.html" in page
    assert page.count("data:image/svg+xml;base64,") == 2
    assert not list(tmp_path.glob("arms/*/*/checkpoints"))

    # Again: nothing is trained. With a seed more: that one alone.
    monkeypatch.setattr(running, "draw", lambda found: {})
    titles.clear()
    assert experiment(study(), seeds=2, **settings).results == found.results
    assert titles == []
    more = experiment(study(), seeds=3, **settings)
    assert [title.partition("] ")[2] for title in titles] == ["plain, seed 2", "fast, seed 2"]
    assert more.results[:4] == found.results


@pytest.mark.usefixtures("no_figures")
def test_a_failed_arm_stops_nobody_and_is_tried_again(
    tmp_path: Path, data: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = train

    def breaking(*arguments: Any, **settings: Any) -> Any:
        if "plain" in str(settings["out"]):
            raise RuntimeError("the kernel\nbroke")
        return real(*arguments, **settings)

    spec = study(Arm(name="plain"), Arm(name="other", against=("plain",)))
    monkeypatch.setattr(training, "train", breaking)
    found = experiment(spec, out=tmp_path, data=data, seeds=1)
    assert found.failures == {"plain, seed 0": "RuntimeError: the kernel broke"}
    assert [r.arm for r in found.results] == ["other"]
    assert "RuntimeError: the kernel broke" in found.report.read_text()
    monkeypatch.setattr(training, "train", real)
    again = experiment(spec, out=tmp_path, data=data, seeds=1)
    assert (again.failures, len(again.results)) == ({}, 2)


@pytest.mark.usefixtures("no_figures")
def test_stopped_in_a_step_it_continues_from_there(tmp_path: Path, data: str) -> None:
    seen: list[int] = []

    @contextmanager
    def stopping(title: str) -> Iterator[Watcher]:
        def metric(found: Any) -> None:
            seen.append(found["step"])
            if "fast" in title and found["step"] == 2 and found["name"] == "loss":
                signal.raise_signal(signal.SIGTERM)

        yield Watcher(metric=metric)

    with pytest.raises(ExperimentStopped, match="1 of 2 trainings") as caught:
        experiment(study(), out=tmp_path, data=data, seeds=1, watching=stopping)
    assert caught.value.signal == signal.SIGTERM
    assert (tmp_path / "report.html").is_file()
    assert max(seen[-3:]) == 2

    seen.clear()

    @contextmanager
    def watching(title: str) -> Iterator[Watcher]:
        yield Watcher(metric=lambda found: seen.append(found["step"]))

    found = experiment(study(), out=tmp_path, data=data, seeds=1, watching=watching)
    assert min(seen) == 3
    assert [(r.arm, r.steps) for r in found.results] == [("plain", 4), ("fast", 4)]


KILLED = """
import os, signal, sys
from contextlib import contextmanager
from experiments.tiny import registered, study
from vitlab.experiments import run
from vitlab.experiments.probes import probe
from vitlab.experiments.run import experiment
from vitlab.jobs.training_run import Watcher

run.draw = lambda found: {}

@contextmanager
def killing(title):
    def metric(found):
        if "fast" in title and found["step"] == 3:
            os.kill(os.getpid(), signal.SIGKILL)
    yield Watcher(metric=metric)

with registered() as data:
    changes = {**study().changes, "checkpoint_every": 1}
    experiment(study(changes=changes), out=sys.argv[1], data=data, seeds=1, watching=killing)
"""


@pytest.mark.usefixtures("no_figures")
def test_killed_it_continues_from_its_last_checkpoint(tmp_path: Path, data: str) -> None:
    paths = os.pathsep.join(str(ROOT / part) for part in ("src", "tests"))
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    # What was finished is in the tables already.
    with (tmp_path / "results.csv").open(newline="") as file:
        assert [row["arm"] for row in csv.DictReader(file)] == ["plain"]

    titles, seen = [], []

    @contextmanager
    def watching(title: str) -> Iterator[Watcher]:
        titles.append(title)
        yield Watcher(metric=lambda found: seen.append(found["step"]))

    spec = study(changes={**study().changes, "checkpoint_every": 1})
    found = experiment(spec, out=tmp_path, data=data, seeds=1, watching=watching)
    assert titles == ["[2 of 2] fast, seed 0"]
    assert min(seen) > 1
    whole = experiment(spec, out=tmp_path.with_name("whole"), data=data, seeds=1)
    assert [r.right for r in found.results] == [r.right for r in whole.results]


@pytest.mark.usefixtures("no_figures")
def test_what_is_kept_of_it_can_be_continued(tmp_path: Path, data: str) -> None:
    keep = [str(ROOT / "scripts" / "keep-experiment"), str(tmp_path / "a"), str(tmp_path / "b")]
    wrong = subprocess.run(keep, capture_output=True, text=True, check=False)
    assert wrong.returncode == 2
    assert wrong.stderr.startswith("usage: keep-experiment [--weights] RUN TO")
    first = experiment(study(matched="steps"), out=tmp_path / "a", data=data, seeds=1)
    subprocess.run(keep, check=True)
    assert not list((tmp_path / "b").rglob("*.safetensors"))
    again = experiment(study(matched="steps"), out=tmp_path / "b", data=data, seeds=2)
    assert again.results[:2] == first.results
    assert len(again.results) == 4
    assert (tmp_path / "a" / "anchor.json").read_text() == (
        (tmp_path / "b" / "anchor.json").read_text()
    )


@pytest.mark.usefixtures("no_figures")
def test_some_of_the_arms(tmp_path: Path, data: str) -> None:
    arms = (
        Arm(name="first"),
        Arm(name="second", against=("first",)),
        Arm(name="third", against=("first", "second")),
        Arm(name="judged", how="test", start="second", against=("third",)),
    )
    spec = study(*arms, matched="steps")
    chosen = spec.only(["judged"])
    assert [(arm.name, arm.against) for arm in chosen.arms] == [
        *(("first", ()), ("second", ("first",)), ("judged", ())),
    ]
    with pytest.raises(UnknownName, match=r"'fourth'.*third"):
        spec.only(["fourth"])
    found = experiment(spec, out=tmp_path, data=data, seeds=1, arms=["third"])
    assert [result.arm for result in found.results] == ["first", "third"]
    assert "arms=['third']" in found.record.command


@pytest.mark.usefixtures("no_figures")
def test_a_signal_between_trainings_ends_it_at_once(tmp_path: Path, data: str) -> None:
    before = signal.getsignal(signal.SIGTERM)

    @contextmanager
    def stopping(title: str) -> Iterator[Watcher]:
        signal.raise_signal(signal.SIGTERM)
        yield Watcher()

    with pytest.raises(ExperimentStopped, match="0 of 2") as caught:
        experiment(study(), out=tmp_path, data=data, seeds=1, watching=stopping)
    assert caught.value.signal == signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) == before
    assert issubclass(StopNow, KeyboardInterrupt)  # `except Exception` lets it pass


@pytest.mark.usefixtures("no_figures")
def test_a_folder_that_holds_something_else(tmp_path: Path, data: str) -> None:
    (tmp_path / "notes.txt").touch()
    with pytest.raises(ConfigError, match="holds no experiment"):
        experiment(study(), out=tmp_path, data=data)
    (tmp_path / "notes.txt").unlink()
    first = study(Arm(name="plain"))
    experiment(first, out=tmp_path, data=data, seeds=1)
    with pytest.raises(ConfigError, match=r"arm 'plain' with budget 1\.0, not 2\.0"):
        experiment(study(Arm(name="plain", budget=2.0)), out=tmp_path, data=data)
    free = {key: value for key, value in first.changes.items() if not key.startswith("budget")}
    with pytest.raises(ConfigError, match="with minutes None, not 3"):
        experiment(replace(first, changes=free), out=tmp_path, data=data, minutes=3)
    with pytest.raises(ConfigError, match="with matched minutes, not steps"):
        experiment(study(Arm(name="plain"), matched="steps"), out=tmp_path, data=data)
    for bad in (math.inf, math.nan, 0.0):
        with pytest.raises(ConfigError, match="not a positive number"):
            experiment(first, out=tmp_path, data=data, minutes=bad)


@pytest.mark.usefixtures("no_figures")
def test_what_decides_a_training_is_compared_and_nothing_else(
    tmp_path: Path, data: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = study(Arm(name="plain"))
    experiment(first, out=tmp_path, data=data, seeds=1)
    # Words, comparisons and more arms are the same experiment; --arms may take fewer again.
    more = study(
        Arm(name="plain", title="Plain", series="one", x=1.0),
        Arm(name="wide", changes={"model.width": 48}, against=("plain",)),
        changes={**CHANGES, "keep": 1},
        title="Other words",
    )
    found = experiment(more, out=tmp_path, data=data, seeds=1)
    assert [result.arm for result in found.results] == ["plain", "wide"]
    experiment(more, out=tmp_path, data=data, seeds=1, arms=["plain"])
    for field, old, new in (("model.width", 48, 64), ("optimizer.lr", 0.002, 0.003)):
        told = field if field.startswith("model.") else f"train.{field}"
        other = study(Arm(name="plain"), Arm(name="wide", changes={"model.width": 48, field: new}))
        with pytest.raises(ConfigError, match=f"arm 'wide' with {told} {old}, not {new};"):
            experiment(other, out=tmp_path, data=data, seeds=1)
    # A field that there was not when it was begun has been what it usually is.
    record = json.loads((tmp_path / "experiment.json").read_text())
    before = json.dumps(record)
    del record["settled"]["wide"]["model"]["branch_norm"]
    del record["settled"]["wide"]["train"]["optimizer"]["sam"]
    (tmp_path / "experiment.json").write_text(json.dumps(record))
    experiment(more, out=tmp_path, data=data, seeds=1)
    del record["settled"]["wide"]["model"]["width"]
    (tmp_path / "experiment.json").write_text(json.dumps(record))
    with pytest.raises(ConfigError, match=r"arm 'wide' with model\.width absent, not 48;"):
        experiment(more, out=tmp_path, data=data, seeds=1)
    (tmp_path / "experiment.json").write_text(before)
    # The same words of the spec mean something else where the recipe has changed.
    changed = replace(recipe("default"), label_smoothing=0.3)
    monkeypatch.setattr("vitlab.jobs.train.recipe_named", lambda name: changed)
    with pytest.raises(ConfigError, match=r"train\.label_smoothing 0\.1, not 0\.3"):
        experiment(more, out=tmp_path, data=data, seeds=1)


@pytest.mark.slow
@pytest.mark.usefixtures("no_figures")
def test_one_precision_wherever_it_is_continued(
    tmp_path: Path, data: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = study(
        Arm(name="plain"),
        Arm(name="tuned", how="tune", start="plain"),
        Arm(name="exact", changes={"precision": "float32"}),
    )
    monkeypatch.setattr("vitlab.machine.device.has_bfloat16_products", lambda: True)
    found = experiment(spec, out=tmp_path, data=data, seeds=1)
    assert found.record.precision == found.to_dict()["precision"] == "bfloat16"
    monkeypatch.setattr("vitlab.machine.device.has_bfloat16_products", lambda: False)
    found = experiment(spec, out=tmp_path, data=data, seeds=2)
    assert (found.failures, found.record.precision) == ({}, "bfloat16")
    kept = {
        arm: {read_plan(tmp_path / "arms" / arm / f"seed-{s}").train.precision for s in range(2)}
        for arm in ("plain", "tuned", "exact")
    }
    assert kept == {"plain": {"bfloat16"}, "tuned": {"bfloat16"}, "exact": {"float32"}}
    stated = study(Arm(name="plain"), changes={**CHANGES, "precision": "float32"})
    monkeypatch.setattr("vitlab.machine.device.has_bfloat16_products", lambda: True)
    other = experiment(stated, out=tmp_path.with_name("other"), data=data, seeds=1)
    assert other.record.precision == "float32"


@pytest.mark.usefixtures("no_figures")
def test_the_first_arm_alone_decides_the_steps(
    tmp_path: Path, data: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaking(*arguments: Any, **settings: Any) -> Any:
        if "plain" in str(settings["out"]):
            raise ConfigError("no")
        return train(*arguments, **settings)

    spec = study(matched="steps")
    monkeypatch.setattr(training, "train", breaking)
    found = experiment(spec, out=tmp_path, data=data, seeds=1)
    assert found.failures["fast, seed 0"] == (
        "it takes the steps of plain, which has not begun to learn; the same command tries plain "
        "again"
    )
    assert not (tmp_path / "anchor.json").exists()
    monkeypatch.setattr(training, "train", train)
    assert len(experiment(spec, out=tmp_path, data=data, seeds=1).results) == 2


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"model.wdith": 3}, ConfigError, "did you mean"),
        ({"optimizer.lr": -1.0}, ConfigError, "not positive"),
        ({"model": "vit_tset"}, UnknownName, "vit_test"),
        ({"frozen_blocks": 40}, ConfigError, "the model has 2 blocks"),
        ({"small_sizes": [3], "small_until": [0.5]}, ConfigError, "small_sizes"),
        ({"mae.mask": 0.6}, ConfigError, "'wrong': it learns by mae, without labels"),
    ],
)
def test_wrong_settings_are_told_before_anything_is_written(
    tmp_path: Path, data: str, changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    spec = study(Arm(name="plain"), Arm(name="wrong", changes=changes))
    with pytest.raises(error, match=message):
        experiment(spec, out=tmp_path / "out", data=data)
    assert not (tmp_path / "out").exists()


def test_minutes_do_not_override_in_silence(tmp_path: Path, data: str) -> None:
    spec = study(Arm(name="plain", changes={"budget": 3.0, "budget_in": "steps"}))
    with pytest.raises(ConfigError, match="budget in changes, but its minutes"):
        experiment(spec, out=tmp_path / "out", data=data, minutes=1.0)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"how": "tune", "changes": {"model.depth": 3}}, "model.depth: the weights decide it"),
        ({"how": "tune", "changes": {"frozen_blocks": 40}}, "the model has 2 blocks"),
        ({"how": "tune", "changes": {"optimizer.lr": -1.0}}, "not positive"),
        ({"how": "tune", "changes": {"images_per_class": "many"}}, "images_per_class"),
        ({"how": "tune", "image_size": 17}, "17: .* not a multiple of patch_size 8"),
        ({"how": "test", "image_size": 17}, "17: .* not a multiple of patch_size 8"),
    ],
)
def test_what_starts_from_another_is_checked_against_it(
    tmp_path: Path, data: str, fields: dict[str, Any], message: str
) -> None:
    spec = study(Arm(name="plain"), Arm(name="wrong", start="plain", **fields))
    with pytest.raises(ConfigError, match=message):
        experiment(spec, out=tmp_path / "out", data=data)
    assert not (tmp_path / "out").exists()


def test_a_cnn_is_not_tuned(tmp_path: Path, data: str) -> None:
    cnn = Arm(name="cnn", changes={"model": "resnet18_cifar", "model.width": 4})
    spec = study(cnn, Arm(name="tuned", how="tune", start="cnn"))
    with pytest.raises(ConfigError, match="'cnn' is not a Vision Transformer"):
        experiment(spec, out=tmp_path / "out", data=data)


@pytest.mark.usefixtures("no_figures")
def test_fine_tuning_has_the_budget_of_the_experiment(tmp_path: Path, data: str) -> None:
    spec = study(Arm(name="plain"), Arm(name="tuned", how="tune", start="plain", budget=0.5))
    found = experiment(spec, out=tmp_path, data=data, seeds=1)
    assert [result.steps for result in found.results] == [4, 2]
    settled = found.record.settled["tuned"]
    plan = read_plan(tmp_path / "arms" / "tuned" / "seed-0")
    own = {key: value for key, value in to_dict(plan.train).items() if key not in ("seed", "model")}
    assert {**settled["train"], **own} == settled["train"]
    assert settled["model"] == to_dict(from_dict(ViTConfig, plan.model))


def context_of(folder: Path, spec: Any, data: str, **settings: Any) -> Context:
    found = source()
    fields = {"minutes": None, "smoke": False, "precision": "float32", **settings}
    return Context(
        experiment=spec,
        folder=folder,
        data=data,
        source=found,
        smallest_class=min(images_of_classes(found)),
        **fields,
    )


@pytest.mark.slow
@pytest.mark.usefixtures("no_figures")
def test_all_spend_the_compute_that_the_first_was_given(tmp_path: Path, data: str) -> None:
    arms = (Arm(name="first"), Arm(name="deep", changes={"model.depth": 5}, budget=2.0))
    spec = study(*arms, matched="compute")
    first, deep = experiment(spec, out=tmp_path, data=data, seeds=1).results
    place = context_of(tmp_path, spec, data)
    cost = [flops_per_step(place.resolved(arm, place.settings(arm, 0))) for arm in arms]
    assert first.pflops * 1e15 == first.steps * cost[0]  # as the training itself counts
    assert deep.pflops * 1e15 == deep.steps * cost[1]
    assert abs(deep.steps * cost[1] - 2 * first.steps * cost[0]) <= cost[1] / 2


@pytest.mark.slow
def test_compute_of_every_stage_is_as_the_training_counts_it(tmp_path: Path, data: str) -> None:
    """Smaller images, a head that learns first, blocks that do not learn, what is done twice."""
    staged = {"model.dynamic_size": True, "small_sizes": [8], "small_until": [0.5]}
    spec = study(
        Arm(name="plain"),
        Arm(name="staged", changes={**staged, "recompute_activations": True}),
        Arm(name="tuned", how="tune", start="plain", changes={"frozen_blocks": 1}),
        changes={**CHANGES, "optimizer.name": "muon", "budget": 20.0},
    )
    found = experiment(spec, out=tmp_path, data=data, seeds=1)
    assert found.failures == {}
    place = context_of(tmp_path, spec, data)
    for arm, result in zip(spec.arms, found.results, strict=True):
        each = flops_per_step(place.resolved(arm, place.settings(arm, 0)))
        assert result.pflops * 1e15 == pytest.approx(result.steps * each, rel=1e-9)
    assert read_plan(tmp_path / "arms" / "tuned" / "seed-0").train.head_first == 0.1


def test_a_cheap_network_does_not_train_for_ever(tmp_path: Path, data: str) -> None:
    spec = study(Arm(name="a"), Arm(name="b", changes={"model.depth": 1}), matched="compute")
    place = context_of(tmp_path, spec, data)
    a, b = (flops_per_step(place.resolved(arm, place.settings(arm, 0))) for arm in spec.arms)
    assert a > b
    for flops, expected in ((100 * a, round(100 * a / b)), (1e6 * a, 800)):
        anchor = {"steps": 100.0, "flops": flops}
        (tmp_path / "anchor.json").write_text(json.dumps(anchor))
        budget = place.budget(spec.arms[1], place.settings(spec.arms[1], 0))
        assert budget == {"budget": expected, "budget_in": "steps"}


def test_budgets_in_minutes(tmp_path: Path, data: str) -> None:
    spec = study(Arm(name="a", budget=1.5), Arm(name="b", budget=0.5), matched="steps")
    place = context_of(tmp_path, spec, data, minutes=3.0)
    assert place.budget(spec.arms[0], {}) == {"budget": 4.5, "budget_in": "minutes"}
    (tmp_path / "anchor.json").write_text('{"steps": 40.0, "flops": 1e9}')
    assert place.budget(spec.arms[1], {}) == {"budget": 20.0, "budget_in": "steps"}


def test_a_share_of_the_images(tmp_path: Path, data: str) -> None:
    spec = study(Arm(name="a", share=0.85), Arm(name="b"), Arm(name="c", share=0.1))
    place = context_of(tmp_path, spec, data)
    # 13 of a class; ten at least, so that some can be held out.
    assert [place.images_per_class(arm) for arm in spec.arms[:2]] == [11, None]
    with pytest.raises(ConfigError, match="'c' learns from 1 of 13 images of a class; valid: 10"):
        place.images_per_class(spec.arms[2])
    assert replace(place, smoke=True).images_per_class(spec.arms[2]) == 10


def test_halves_of_the_classes() -> None:
    whole = source()
    half = part(whole, 2, 5)
    assert half.labels == LABELS[2:]
    assert half.open_test is not None
    for images, all_images in (
        (half.open_train(), whole.open_train()),
        (half.open_test(), whole.open_test()),
    ):
        kept = all_images.labels >= 2
        assert images.labels.tolist() == (all_images.labels[kept] - 2).tolist()
        assert (images.images == all_images.images[kept]).all()


@pytest.mark.usefixtures("no_figures")
def test_features_are_judged_by_classes_that_were_not_learnt(tmp_path: Path, data: str) -> None:
    found = experiment(study(measure="few-shot"), out=tmp_path, data=data, seeds=1)
    assert found.failures == {}
    plan = read_plan(tmp_path / "arms" / "plain" / "seed-0")
    assert plan.model["classes"] == 2
    assert [r.images for r in found.results] == [21, 21]  # 7 of each of the other three
    assert [len(r.draws) for r in found.results] == [10, 10]
    assert found.differences[0].over == "draws"
    assert found.differences[0].low is not None


@pytest.mark.usefixtures("no_figures")
def test_tuned_and_judged_at_another_size(tmp_path: Path, data: str) -> None:
    spec = study(
        Arm(name="learnt"),
        Arm(name="judged", how="test", start="learnt", image_size=24, against=("learnt",)),
        Arm(name="same", how="test", start="learnt", against=("learnt",)),
        Arm(name="fresh", how="test", start="learnt", image_size=24, positions="fresh"),
        Arm(name="tuned", how="tune", start="learnt", image_size=24, positions="fresh"),
        matched="steps",
    )
    found = experiment(spec, out=tmp_path, data=data, seeds=1)
    assert found.failures == {}
    learnt, judged, same, fresh, tuned = found.results
    assert same.right == learnt.right
    assert judged.forward > learnt.forward == same.forward
    assert (judged.steps, fresh.steps, tuned.steps) == (0, 0, 4)
    assert read_plan(tmp_path / "arms" / "tuned" / "seed-0").model["image_size"] == 24
    assert (tmp_path / "starts" / "tuned" / "seed-0" / "config.json").is_file()


@pytest.mark.usefixtures("no_figures")
def test_what_starts_from_nothing_is_a_failure(
    tmp_path: Path, data: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: Any, **settings: Any) -> Any:
        raise ConfigError("no")

    monkeypatch.setattr(training, "train", broken)
    spec = study(Arm(name="a"), Arm(name="b", how="test", start="a"))
    found = experiment(spec, out=tmp_path, data=data, seeds=1)
    assert found.failures["b, seed 0"] == "it starts from a, seed 0, which has no result"
    page = found.report.read_text()
    assert "Failed, so that differences leave that seed out: a, seed 0; b, seed 0." in page


@pytest.mark.usefixtures("no_figures")
def test_a_kept_experiment_goes_on_from_kept_weights(tmp_path: Path, data: str) -> None:
    spec = study(
        Arm(name="pixels", how="pretrain", objective="mae", once=True),
        Arm(name="tuned", how="tune", start="pixels", new_head=True),
        matched="steps",
    )
    experiment(spec, out=tmp_path / "a", data=data, seeds=1, arms=["pixels"])
    keep = str(ROOT / "scripts" / "keep-experiment")
    subprocess.run([keep, str(tmp_path / "a"), str(tmp_path / "b")], check=True)
    kept = tmp_path / "b" / "arms" / "pixels" / "seed-0"
    assert sorted(path.name for path in kept.iterdir()) == [
        *("hidden-patches.png", "loss.png", "plan.json", "result.json"),
    ]
    plan = json.loads((kept / "plan.json").read_text())
    assert plan == json.loads((tmp_path / "a/arms/pixels/seed-0/config.json").read_text())
    # Without weights, the one line says what to do; with them it goes on.
    found = experiment(spec, out=tmp_path / "b", data=data, seeds=1)
    assert "keep-experiment --weights" in found.failures["tuned, seed 0"]
    subprocess.run([keep, "--weights", str(tmp_path / "a"), str(tmp_path / "c")], check=True)
    found = experiment(spec, out=tmp_path / "c", data=data, seeds=1)
    assert (found.failures, [r.arm for r in found.results]) == ({}, ["pixels", "tuned"])
    # A copy of the copy has the plan still.
    subprocess.run([keep, str(tmp_path / "c"), str(tmp_path / "d")], check=True)
    assert (tmp_path / "d" / "arms" / "pixels" / "seed-0" / "plan.json").is_file()
    page = (tmp_path / "c" / "report.html").read_text()
    assert "of its start" in page


@pytest.mark.usefixtures("no_figures")
def test_images_that_were_learnt_from_are_judged_too(tmp_path: Path, data: str) -> None:
    found = experiment(study(probes=("fit",)), out=tmp_path, data=data, seeds=1, arms=["plain"])
    (learnt,) = found.results[0].probes["train_accuracy"]
    run = tmp_path / "arms" / "plain" / "seed-0"
    images, held_out = open_images(source(), read_plan(run).train, None)
    assert isinstance(images, ArraySet)
    assert held_out is not None  # and no part of what was learnt
    with torch.no_grad():
        guesses = load(run).model((images.images / 255 - 0.5) / 0.3).argmax(dim=1)
    assert learnt == pytest.approx(float((guesses == images.labels).double().mean()))
    assert "training images" in found.report.read_text()
    assert found.summaries["plain"].train_accuracy == learnt


def test_data_without_classes_enough(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="3 classes; valid: 4 or more"):
        halve("three", part(source(), 0, 3))
    whole = source()
    rare = replace(whole, open_train=lambda: whole.open_train().subset(torch.arange(13 * 4 + 4)))
    with pytest.raises(DataError, match="tiny has 4 training images of white; valid: 5 or more"):
        halve("rare", rare)


def test_data_that_cannot_be_judged_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lacking = replace(source(), unjudged="no test image is white")
    with registered() as name:
        monkeypatch.setitem(DATASETS._entries, name, lambda: lacking)
        with pytest.raises(DataError, match="no test image is white"):
            experiment(study(), out=tmp_path / "e", data=name)
    assert not (tmp_path / "e").exists()


@pytest.mark.usefixtures("no_figures")
def test_changed_data_is_refused(
    tmp_path: Path, data: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment(study(), out=tmp_path, data=data, seeds=1)
    whole = source()
    fewer = replace(whole, open_train=lambda: whole.open_train().subset(torch.arange(64)))
    monkeypatch.setitem(DATASETS._entries, data, lambda: fewer)
    with pytest.raises(ConfigError, match="with 65 images to learn from; tiny now has 64"):
        experiment(study(), out=tmp_path, data=data, seeds=2)


@pytest.mark.usefixtures("no_figures")
def test_what_a_kill_left_behind_goes(tmp_path: Path, data: str) -> None:
    experiment(study(), out=tmp_path, data=data, seeds=1)
    left = tmp_path / "arms" / "plain" / "seed-0" / "checkpoints"
    left.mkdir()
    (left / "last.safetensors").write_bytes(b"x")
    experiment(study(), out=tmp_path, data=data, seeds=1)
    assert not left.exists()


def test_dollars_and_lines_in_titles(tmp_path: Path, data: str) -> None:
    spec = study(
        Arm(name="a", title="$_$", series="_$^$", x=1.0),
        Arm(name="b", title=r"x_$a_$ \$", series="_$^$", x=2.0, against=("a",)),
        axis=Axis(title=r"$\foo$"),
    )
    found = experiment(spec, out=tmp_path, data=data, seeds=1)
    drawn = (tmp_path / "accuracy.svg").read_text()
    assert r"$\foo$" in drawn
    assert "_$^$" in drawn  # in the legend, too
    assert "x_$a_$" in (tmp_path / "differences.svg").read_text()
    assert found.failures == {}


@pytest.mark.usefixtures("no_figures")
def test_trying_out_what_needs_larger_batches_and_models(tmp_path: Path) -> None:
    spec = study(
        Arm(name="parts", changes={"accumulate": 4}),
        Arm(name="frozen", changes={"frozen_blocks": 3}),
        changes={"model": "vit_test", "model.depth": 4, "batch_size": 100},
    )
    found = experiment(spec, out=tmp_path, smoke=True, seeds=1)
    assert (found.failures, len(found.results)) == ({}, 2)


@pytest.mark.slow
@pytest.mark.usefixtures("no_figures")
def test_one_pretraining_for_all_seeds(tmp_path: Path, data: str) -> None:
    arms = (
        Arm(name="pixels", how="pretrain", objective="mae", once=True),
        Arm(name="nothing", how="tune", start="pixels", weights="fresh", new_head=True),
        Arm(name="tuned", how="tune", start="pixels", new_head=True, against=("nothing",)),
    )
    found = experiment(study(*arms), out=tmp_path, data=data, seeds=2)
    assert found.failures == {}
    assert [(r.arm, r.seed) for r in found.results] == [
        *(("pixels", 0), ("nothing", 0), ("tuned", 0), ("nothing", 1), ("tuned", 1)),
    ]
    assert found.trainings == 5
    assert [r.value is None for r in found.results] == [True, False, False, False, False]
    assert set(found.summaries) == {"nothing", "tuned"}
    assert [gap.seeds for gap in found.differences] == [2]
    plans = [read_plan(tmp_path / "arms" / "tuned" / f"seed-{seed}") for seed in range(2)]
    starts = [plan.start for plan in plans]
    assert all(start is not None and start.new_head for start in starts)
    assert {start.weights for start in starts if start} == {
        str((tmp_path / "arms" / "pixels" / "seed-0").absolute())
    }
    page = found.report.read_text()
    assert "arms/pixels/seed-0/report.html" in page
    assert "the model of pixels, from nothing" in page


def test_tuning_has_the_compute_of_the_first(tmp_path: Path, data: str) -> None:
    large = Arm(name="large", how="tune", start="plain", image_size=32)
    spec = study(Arm(name="plain"), large, matched="compute")
    place = context_of(tmp_path, spec, data)
    first = flops_per_step(place.resolved(spec.arms[0], place.settings(spec.arms[0], 0)))
    anchor = {"steps": 100.0, "flops": 100.0 * first}
    (tmp_path / "anchor.json").write_text(json.dumps(anchor))
    settings = place.settings(large, 0)
    steps = place.budget(large, settings)["budget"]
    assert steps != 100
    assert steps * flops_per_step(place.resolved(large, settings)) == pytest.approx(
        100.0 * first, rel=0.5 / steps
    )


@pytest.mark.usefixtures("no_figures")
def test_a_damaged_result_is_a_failure_of_that_training_alone(tmp_path: Path, data: str) -> None:
    experiment(study(), out=tmp_path, data=data, seeds=1)
    place = tmp_path / "arms" / "plain" / "seed-0"
    (place / "result.json").write_text("")
    found = experiment(study(), out=tmp_path, data=data, seeds=1)
    assert [result.arm for result in found.results] == ["fast"]
    assert f"remove {place} to train it again" in found.failures["plain, seed 0"]
    shutil.rmtree(place)
    assert len(experiment(study(), out=tmp_path, data=data, seeds=1).results) == 2


@pytest.mark.usefixtures("no_figures")
def test_gradients_are_those_of_the_weights_at_the_start(tmp_path: Path, data: str) -> None:
    tuned = Arm(name="tuned", how="tune", start="plain", changes={"head_first": 0.0})
    spec = study(Arm(name="plain"), tuned, probes=("gradients",))
    found = experiment(spec, out=tmp_path, data=data, seeds=1)
    assert found.failures == {}
    told = {result.arm: result.probes["gradient_of_block"] for result in found.results}
    # Again when checkpoints are gone: as before, and not those of weights drawn anew.
    for arm, gradients in told.items():
        place = tmp_path / "arms" / arm / "seed-0"
        again = probe(("gradients",), place, source(), False)
        assert again["gradient_of_block"] == pytest.approx(gradients)


@pytest.mark.usefixtures("no_figures")
def test_the_command_continues_what_it_names(tmp_path: Path, data: str) -> None:
    (tmp_path / ".experiment.json.a1b2c3d4").touch()  # killed while it was written
    record = experiment(study(), out=tmp_path, data=data, seeds=1).record
    assert record.command == (
        f"vitlab.experiment(study, out='{tmp_path}', data='tiny', seeds=1)"
        f"  # study: the Experiment of this name"
    )
    line = exact_command(
        "position", tmp_path, data=None, seeds=None, minutes=1.23456789, smoke=False, arms=None
    )
    assert line.endswith("--minutes 1.23456789")
