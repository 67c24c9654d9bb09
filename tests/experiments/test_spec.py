"""Experiments as data: what is refused, and what a TOML file may say."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from vitlab.config import to_dict
from vitlab.data.datasets import open_data
from vitlab.errors import ConfigError, UnknownName, VitlabError
from vitlab.experiments.context import Context
from vitlab.experiments.spec import NAMES, STUDIES, Arm, Experiment, Gain, find, named, read

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", NAMES)
def test_every_experiment_asks_something_and_compares(name: str) -> None:
    found = named(name)
    assert found.name == name
    assert found.question.endswith("?")
    assert any(arm.against for arm in found.arms)
    assert found.minutes is not None
    shown = [arm.shown for arm in found.arms]
    assert len(set(shown)) == len(shown)


def test_the_documented_file_is_read() -> None:
    found = read(ROOT / "docs" / "experiments" / "dropout.toml")
    assert (found.name, found.matched, len(found.arms)) == ("dropout", "steps", 3)
    assert found.arm("dropout").changes == {"model.dropout": 0.1}
    assert found.arm("dropout").against == ("none",)


def test_tables_of_toml_become_dotted_keys(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        'changes = {optimizer.lr = 0.5, "model.depth" = 3}\n'
        '[[arms]]\nname = "a"\n[arms.changes.augment]\nmixup = 0.2\n'
    )
    found = find(path)
    assert found.changes == {"optimizer.lr": 0.5, "model.depth": 3}
    assert found.arms[0].changes == {"augment.mixup": 0.2}
    assert (found.name, found.title) == ("mine", "mine")


def test_gains_are_of_four_arms_that_are_there(tmp_path: Path) -> None:
    arms = "".join(f'[[arms]]\nname = "{name}"\n' for name in "abcd")
    path = tmp_path / "mine.toml"
    path.write_text(f'gains = [{{of = ["a", "b"], beside = ["c", "d"]}}]\n{arms}')
    assert find(path).gains == (Gain(of=("a", "b"), beside=("c", "d")),)
    path.write_text(f'gains = [{{of = ["a", "b"], beside = ["c", "e"]}}]\n{arms}')
    with pytest.raises(VitlabError, match="arm of a gain 'e'"):
        find(path)
    with pytest.raises(ConfigError, match="four different arms"):
        Gain(of=("a", "b"), beside=("c", "b"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("arms = 3", "expected"),
        ("title = [", "not TOML"),
        ('[[arms]]\nname = "a"\nagaints = ["b"]', "did you mean .*against"),
        ('[[arms]]\nname = "a"\nagainst = ["b"]', "against.*'b'"),
        ('[[arms]]\nname = "../a"', "letters, digits"),
        ('[[arms]]\nname = "a"\n[[arms]]\nname = "a"', "several arms 'a'"),
        ('matched = "luck"\n[[arms]]\nname = "a"', "one of minutes, steps, compute"),
    ],
)
def test_a_wrong_file_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text(text)
    with pytest.raises(VitlabError, match=message) as caught:
        find(path)
    assert str(path) in str(caught.value)


def test_a_missing_file_and_an_unknown_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        find(tmp_path / "nothing.toml")
    with pytest.raises(UnknownName, match="did you mean position"):
        find("positions")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"budget": 0}, "not a positive"),
        ({"budget": float("inf")}, "not a positive"),
        ({"changes": {"seed": 3}}, "seed in changes"),
        ({"changes": {"judged_on": "held-out"}}, "judged_on in changes"),
        ({"changes": {"precision": "auto"}}, "decided for all arms"),
        ({"share": 0.5, "changes": {"images_per_class": 3}}, "images_per_class in changes"),
        ({"how": "tune", "start": "b", "changes": {"model": "vit_test"}}, "the weights of 'b'"),
        ({"how": "test", "start": "b", "changes": {"ema": 0.0}}, "trains nothing"),
        ({"how": "test", "start": "b", "share": 0.5}, "trains nothing"),
        ({"how": "test", "start": "b", "budget": 2.0}, "trains nothing"),
        ({"share": 0}, r"not in \(0, 1\]"),
        ({"how": "tune"}, "needs a start"),
        ({"start": "b"}, "has no start"),
        ({"image_size": 16}, "model.image_size"),
        ({"how": "pretrain"}, "needs an objective"),
        ({"objective": "mae"}, "has no objective"),
        ({"how": "pretrain", "objective": "mae", "start": "b"}, "has no start"),
        ({"new_head": True}, "for how 'tune'"),
    ],
)
def test_arms_that_mean_nothing(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Arm(name="a", **fields)


def test_what_learns_without_labels_is_compared_by_its_features_alone() -> None:
    arms = (Arm(name="p", how="pretrain", objective="mae"), Arm(name="a", against=("p",)))
    Experiment(name="e", title="E", arms=arms, measure="few-shot")
    with pytest.raises(ConfigError, match=r"'p' is compared, but learns without labels"):
        Experiment(name="e", title="E", arms=arms)


def test_the_first_arm_decides_and_a_test_tells_accuracy() -> None:
    half = (Arm(name="a", budget=0.5), Arm(name="b"))
    Experiment(name="e", title="E", arms=half)
    with pytest.raises(ConfigError, match=r"'a' is the first.*the steps of all.*0\.5"):
        Experiment(name="e", title="E", arms=half, matched="steps")
    tested = (Arm(name="a"), Arm(name="b", how="test", start="a"))
    with pytest.raises(ConfigError, match=r"'b'.*not few-shot"):
        Experiment(name="e", title="E", arms=tested, measure="few-shot")


def test_changes_that_something_else_decides() -> None:
    counted: dict[str, Any] = {"budget": 3.0, "budget_in": "steps"}
    arms = (Arm(name="a", changes=counted), Arm(name="b", changes=counted))
    Experiment(name="e", title="E", arms=arms, changes=counted)
    Experiment(name="e", title="E", arms=arms[:1], matched="steps")
    with pytest.raises(ConfigError, match=r"'b': budget in changes.*first arm decides it"):
        Experiment(name="e", title="E", arms=arms, matched="steps")
    with pytest.raises(ConfigError, match=r"'a': budget in changes.*minutes decide it"):
        Experiment(name="e", title="E", arms=arms, minutes=1)
    for fields, message in (
        ({"changes": counted, "minutes": 1}, "budget in changes, but its minutes"),
        ({"changes": {"seed": 1}}, "seed in changes"),
        ({"changes": {"judged_on": "held-out"}}, "judged_on in changes"),
        ({"minutes": float("inf")}, "not a positive number"),
        (
            {"changes": {"images_per_class": 9}, "arms": (Arm(name="a", share=0.5),)},
            "images_per_class in changes, and share of arm 'a'",
        ),
    ):
        with pytest.raises(ConfigError, match=message):
            Experiment(**{"name": "e", "title": "E", "arms": (Arm(name="a"),), **fields})


def test_a_start_stands_before_and_trains() -> None:
    tested = Arm(name="b", how="test", start="a", image_size=16)
    Experiment(name="e", title="E", arms=(Arm(name="a"), tested))
    with pytest.raises(UnknownName, match="must stand before it"):
        Experiment(name="e", title="E", arms=(tested, Arm(name="a")))
    with pytest.raises(ConfigError, match="trains nothing"):
        Experiment(
            name="e", title="E", arms=(Arm(name="a"), tested, Arm(name="c", how="tune", start="b"))
        )


def test_arms_that_are_trained_once() -> None:
    once = Arm(name="a", how="pretrain", objective="mae", once=True)
    tuned = Arm(name="b", how="tune", start="a", weights="fresh")
    found = Experiment(name="e", title="E", arms=(once, tuned))
    pairs = [(arm.name, seed) for arm, seed in found.trainings(3)]
    assert pairs == [("a", 0), ("b", 0), ("b", 1), ("b", 2)]
    with pytest.raises(ConfigError, match="no head to evaluate"):
        Experiment(name="e", title="E", arms=(once, Arm(name="c", how="test", start="a")))
    with pytest.raises(ConfigError, match="nothing is compared with it"):
        Experiment(name="e", title="E", arms=(once, Arm(name="c", against=("a",))))


@pytest.mark.parametrize(
    "path", sorted((ROOT / "docs" / "experiments").glob("*.toml")), ids=lambda path: path.stem
)
def test_the_files_beside_the_findings_can_be_run(path: Path, tmp_path: Path) -> None:
    """Every arm resolves to a training and a model; nothing is trained."""
    found = replace(find(path), matched="minutes")
    context = Context(
        experiment=found,
        folder=tmp_path,
        data="sample",
        source=open_data("sample"),
        smallest_class=300,
        minutes=found.minutes,
        smoke=False,
        precision="float32",
    )
    assert context.check().keys() == found.by_name.keys()


DIGESTS = {
    "position": "39009c6976ff7975",
    "class-token": "938f3cdbd045b307",
    "cnn-vs-vit": "d9e94fe8f4c7996e",
    "data-size": "7295ce822dd0abe3",
    "compute": "d1c135c00ecdbfd1",
    "few-shot": "bd78aa479189c6ee",
    "small-data": "1cb521545db48e4b",
    "norm-placement": "dbd28dbfe2db5ee6",
    "shape": "85e298dd7d953e4e",
    "resolution": "a7358a9257f56c50",
    "attention-kind": "fec7eaf7b115528d",
    "pretraining": "2521c82a2dd75bd3",
}
"""Of every field of a bundled experiment, presets filled in: committed results depend on them."""


def test_the_bundled_files_are_the_named_experiments() -> None:
    assert sorted(NAMES) == sorted(path.stem for path in STUDIES.glob("*.toml")) == sorted(DIGESTS)


@pytest.mark.parametrize("name", NAMES)
def test_no_field_of_a_bundled_experiment_has_changed(name: str) -> None:
    text = json.dumps(to_dict(named(name)), sort_keys=True)
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == DIGESTS[name]


@pytest.mark.parametrize("name", NAMES)
def test_a_copy_of_a_bundled_file_is_the_same_experiment(name: str, tmp_path: Path) -> None:
    copy = tmp_path / f"{name}.toml"
    copy.write_bytes((STUDIES / copy.name).read_bytes())
    assert find(copy) == named(name)


def test_presets_come_before_the_changes_of_an_arm(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    presets = '[presets.deep]\n"model.depth" = 9\nmodel.width = 32\n'
    path.write_text(
        f'{presets}[[arms]]\nname = "a"\npreset = "deep"\nchanges = {{"model.depth" = 3}}\n'
        '[[arms]]\nname = "b"\npreset = "deep"\n'
    )
    found = find(path)
    assert found.arm("a").changes == {"model.depth": 3, "model.width": 32}
    assert found.arm("b").changes == {"model.depth": 9, "model.width": 32}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[[arms]]\nname = "a"\npreset = "deep"', "unknown preset of arm 'a' 'deep'"),
        ('[presets.deep]\n[[arms]]\nname = "a"\npreset = "dep"', "did you mean deep"),
        ('[presets.deep]\n[[arms]]\nname = "a"\npreset = ["deep"]', "preset of arm 'a'"),
        ('presets = 3\n[[arms]]\nname = "a"', "not a table of tables"),
        ('presets.a = 3\n[[arms]]\nname = "a"', "not a table of tables"),
        ('[presets.a]\n[[arms]]\nname = "a"\npreset = "a"\nchanges = 3', "arms.0.changes"),
    ],
)
def test_wrong_presets(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "wrong.toml"
    path.write_text(text)
    with pytest.raises(VitlabError, match=message) as caught:
        find(path)
    assert str(path) in str(caught.value)
