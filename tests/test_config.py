"""Configs survive JSON, and every mistake in one is named."""

import json
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from vitlab.config import from_dict, override, to_dict, without_removed
from vitlab.errors import ConfigError
from vitlab.models.config import ViTConfig
from vitlab.training.config import TrainConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class Crop:
    size: int | tuple[int, int]
    ratio: float = 0.875


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    name: str
    crop: Crop
    second: Crop | None = None
    mode: Literal["none", "fast"] = "none"
    steps: int = 7
    lr: float | None = None
    resume: bool = False
    widths: tuple[int, ...] = (3, 5)
    labels: list[str] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)


RUN = Run(
    name="a",
    crop=Crop(size=(2, 3)),
    second=Crop(size=11, ratio=0.5),
    lr=1e-3,
    labels=["x", "y"],
    metrics={"accuracy": 0.25},
)


@pytest.mark.parametrize("run", [RUN, Run(name="b", crop=Crop(size=1))])
def test_a_config_survives_json(run: Run) -> None:
    assert from_dict(Run, json.loads(json.dumps(to_dict(run)))) == run


def test_a_vit_config_survives_json() -> None:
    config = ViTConfig(
        width=6,
        depth=1,
        heads=2,
        mlp_width=5,
        patch_size=(2, 3),
        image_size=(4, 9),
        layer_scale=1e-5,
        position_grid=(2, 3),
    )
    assert from_dict(ViTConfig, json.loads(json.dumps(to_dict(config)))) == config


def test_defaults_fill_what_is_absent_and_ints_become_floats() -> None:
    run = from_dict(Run, {"name": "a", "crop": {"size": 3, "ratio": 1}, "lr": 1})
    assert run == Run(name="a", crop=Crop(size=3, ratio=1.0), lr=1.0)
    assert isinstance(run.crop.ratio, float)
    assert isinstance(run.lr, float)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"stepz": 3}, "unknown key 'stepz' of Run; did you mean steps?"),
        ({"crop": {"sise": 3}}, "unknown key 'crop.sise' of Crop; did you mean size?"),
        ({"crop": {}}, "missing key 'crop.size' of Crop"),
        ({"second": {"ratio": 0.5}}, "missing key 'second.size' of Crop"),
        ({"crop": 3}, "key 'crop': found 3, expected an object with keys of Crop"),
        ({"steps": "7"}, "key 'steps': found '7', expected int"),
        ({"steps": 7.0}, "key 'steps': found 7.0, expected int"),
        ({"steps": True}, "key 'steps': found True, expected int"),
        ({"resume": 1}, "key 'resume': found 1, expected bool"),
        ({"lr": "fast"}, "key 'lr': found 'fast', expected float or None"),
        ({"mode": "slow"}, "key 'mode': found 'slow', expected one of none, fast"),
        ({"crop": {"size": [1, 2, 3]}}, "'crop.size': found [1, 2, 3], expected int or [int, int]"),
        ({"widths": [3, "5"]}, "key 'widths.1': found '5', expected int"),
        ({"labels": [3]}, "key 'labels.0': found 3, expected str"),
        ({"metrics": {"f1": "high"}}, "key 'metrics.f1': found 'high', expected float"),
    ],
)
def test_a_mistake_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        from_dict(Run, {"name": "a", "crop": {"size": 3}} | change)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("old", "other", "key"),
    [
        ({"ghost_batches": 1}, {"ghost_batches": 2}, "ghost_batches"),
        (
            {"augment": {"shift_padding": "reflect", "mix_probability": 1.0, "shift": 3}},
            {"augment": {"mix_probability": 0.5}},
            "augment.mix_probability",
        ),
    ],
)
def test_a_removed_option_is_read_with_its_default_alone(
    old: dict[str, Any], other: dict[str, Any], key: str
) -> None:
    stored = {**to_dict(TrainConfig(batch_size=36)), **old}
    config = from_dict(TrainConfig, stored)
    assert config.batch_size == 36
    assert config.augment.shift == old.get("augment", {}).get("shift", 0)
    assert without_removed(TrainConfig, {**stored, "steps": 3}) == {
        **to_dict(config),
        **({"augment": {"shift": 3}} if "augment" in old else {}),
        "steps": 3,
    }
    with pytest.raises(ConfigError, match=f"'{key}': found .*was removed; valid: 1"):
        from_dict(TrainConfig, other)
    with pytest.raises(ConfigError, match="unknown key"):
        override(config, {key: "1"})


def test_a_missing_key_is_named() -> None:
    with pytest.raises(ConfigError, match="missing key 'name' of Run"):
        from_dict(Run, {"crop": {"size": 3}})


@pytest.mark.parametrize("data", [3, ["name"], None])
def test_something_else_than_an_object_is_refused(data: Any) -> None:
    with pytest.raises(ConfigError, match="expected an object with keys of Run"):
        from_dict(Run, data)


@pytest.mark.parametrize(
    ("key", "text", "expected"),
    [
        ("name", "384", "384"),
        ("name", "none", "none"),
        ("name", "", ""),
        ("steps", "13", 13),
        ("lr", "1e-4", 1e-4),
        ("lr", "3", 3.0),
        ("lr", "none", None),
        ("mode", "none", "none"),
        ("resume", "true", True),
        ("resume", "False", False),
        ("widths", "2,3,7", (2, 3, 7)),
        ("widths", "[2, 3]", (2, 3)),
        ("widths", "5", (5,)),
        ("widths", "()", ()),
        ("labels", "cat,dog", ["cat", "dog"]),
        ("crop.size", "17", 17),
        ("crop.size", "17x19", (17, 19)),
        ("crop.size", "(17, 19)", (17, 19)),
    ],
)
def test_a_string_is_read_as_its_field_asks(key: str, text: str, expected: Any) -> None:
    value: Any = override(RUN, {key: text})
    for name in key.split("."):
        value = getattr(value, name)
    assert value == expected
    assert type(value) is type(expected)


def test_override_changes_nothing_else() -> None:
    assert override(RUN, {}) == RUN
    changed = override(RUN, {"crop.ratio": "0.25"})
    assert to_dict(changed) == to_dict(RUN) | {"crop": {"size": [2, 3], "ratio": 0.25}}


def test_override_takes_values_as_well_as_strings() -> None:
    assert override(RUN, {"crop": Crop(size=5), "steps": 3}).crop == Crop(size=5)


def test_override_opens_a_group_that_was_none() -> None:
    run = override(Run(name="b", crop=Crop(size=1)), {"second.size": "3", "second.ratio": "0.5"})
    assert run.second == Crop(size=3, ratio=0.5)


def test_changes_that_only_fit_together_are_made_together() -> None:
    config = ViTConfig(width=6, depth=1, heads=2, mlp_width=5, patch_size=4, image_size=8)
    changed = override(config, {"width": "35", "heads": "7"})
    assert (changed.width, changed.heads) == (35, 7)
    with pytest.raises(ConfigError, match="does not split into 2 heads"):
        override(config, {"width": "35"})


@pytest.mark.parametrize(
    ("key", "text", "message"),
    [
        ("step", "3", "unknown key 'step' of Run; did you mean steps?"),
        ("crop.sizes", "3", "unknown key 'crop.sizes' of Crop; did you mean size?"),
        ("steps.more", "3", "unknown key 'steps.more'; 'steps' is int and has no keys"),
        ("steps", "many", "key 'steps': found 'many', expected int"),
        ("resume", "maybe", "key 'resume': found 'maybe', expected bool"),
        ("crop", "3", "key 'crop': found '3', expected Crop"),
    ],
)
def test_a_mistake_in_an_override_is_named(key: str, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        override(RUN, {key: text})
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("crob.size", "unknown key 'crob.size' of Run; did you mean crop?"),
        ("crop.sizes", "unknown key 'crop.sizes' of Crop; did you mean size?"),
        ("steps.more", "unknown key 'steps.more'; 'steps' is int and has no keys"),
    ],
)
def test_a_mistake_is_named_whatever_the_value(key: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        override(RUN, {key: 3})
    assert message in str(caught.value)
