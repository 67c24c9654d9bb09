"""Our own files: every config comes back with its tensors, and nothing half-written stays."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import vitlab
from reference.random_weights import randomise
from vitlab.config import to_dict
from vitlab.errors import ConfigError, FileError, UnknownName, WeightsError
from vitlab.images.preprocessing import Preprocessing
from vitlab.models.config import pair

BASE: dict[str, Any] = {
    "width": 32,
    "depth": 2,
    "heads": 2,
    "mlp_width": 48,
    "patch_size": 4,
    "image_size": (12, 20),
    "classes": 3,
}
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "conv": {"stem": "conv", "conv_norm": "batch"},
    "shifted": {"stem": "shifted"},
    "resnet": {"stem": "resnet", "resnet_layers": (1,), "resnet_width": 32, "patch_size": (3, 5)},
    "learned2d": {"position": "learned2d", "position_at": "every_layer", "registers": 2},
    "relative": {"position": "relative"},
    "conditional": {"position": "conditional", "position_at": "every_layer"},
    "pooled": {"pool_after": 1, "position": "relative", "image_size": (16, 24)},
    "relative_bias": {"position": "relative_bias", "relative_local": 0.5},
    "no norm bias": {"norm_bias": False},
    "branch norm": {"branch_norm": 0.2},
    "rope": {"position": "rope", "registers": 1, "position_prefix": "none"},
    "lsa": {"attention": "lsa", "norm": "post"},
    "map": {"pool": "map", "class_token": False, "head": "mlp", "representation_size": 11},
    "no head": {"classes": 0, "pool": "mean", "norm_at": "pooled"},
}


def build(**changes: Any) -> vitlab.VisionTransformer:
    model = vitlab.VisionTransformer(vitlab.ViTConfig(**{**BASE, **changes}))
    randomise(model)
    return model.eval()


@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
@pytest.mark.parametrize("case", CASES)
def test_every_kind_comes_back(case: str, suffix: str, tmp_path: Path) -> None:
    model = build(**CASES[case])
    path = tmp_path / f"a{suffix}"
    vitlab.save_weights(model, path)
    again = vitlab.load_weights(path)
    assert again.config == model.config
    assert not again.training
    images = torch.randn(2, 3, *pair(model.config.image_size))
    with torch.no_grad():
        assert torch.equal(again(images), model(images))
    for name, tensor in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name


def test_the_format_s_own_library_reads_our_files(tmp_path: Path) -> None:
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file

    model = build(**CASES["conv"])
    vitlab.save_weights(model, tmp_path / "a.safetensors")
    state = load_file(tmp_path / "a.safetensors")
    assert all(torch.equal(state[name], tensor) for name, tensor in model.state_dict().items())
    with safe_open(tmp_path / "a.safetensors", framework="pt") as file:
        described = json.loads(file.metadata()["vitlab"])
    assert described["model"] == to_dict(model.config)

    save_file({n: t.half() for n, t in state.items()}, tmp_path / "b.safetensors")
    half = vitlab.load_weights(tmp_path / "b.safetensors", **to_dict(model.config))
    assert {p.dtype for p in half.parameters()} == {torch.float32}
    weight = half.state_dict()["head.weight"]
    assert torch.equal(weight, model.state_dict()["head.weight"].half().float())


def test_a_bundle_s_config_lies_beside(tmp_path: Path) -> None:
    model = build()
    torch.save(model.state_dict(), tmp_path / "weights.pth")
    with pytest.raises(WeightsError, match="without vitlab's config"):
        vitlab.load_weights(tmp_path)
    preparation = Preprocessing(size=(12, 20), mean=(0.1,) * 3, std=(0.2,) * 3)
    content = {
        "format_version": 1,
        "model": to_dict(model.config),
        "preprocessing": preparation.to_json(),
        "labels": ["a", "b", "c"],
    }
    (tmp_path / "config.json").write_text(json.dumps(content))
    loaded = vitlab.load_weights(tmp_path)
    assert loaded.config == model.config
    assert (loaded.source.labels, loaded.source.preprocessing) == (("a", "b", "c"), preparation)
    content["model"]["widht"] = 3
    (tmp_path / "config.json").write_text(json.dumps(content))
    with pytest.raises(WeightsError, match=r"config.json.*widht"):
        vitlab.load_weights(tmp_path)


def test_writing_is_all_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.safetensors"
    vitlab.save_weights(build(), path)
    before = path.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(FileError, match="No space left"):
        vitlab.save_weights(build(classes=5), path)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_a_file_may_be_saved_over_itself(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    model = build()
    vitlab.save_weights(model, path)
    vitlab.save_weights(vitlab.load_weights(path), path)
    again = vitlab.load_weights(path)
    assert all(torch.equal(again.state_dict()[n], t) for n, t in model.state_dict().items())


@pytest.mark.parametrize(
    ("name", "format", "message"),
    [
        ("a.npz", "vitlab", r"not written as '\.npz'; valid: \.safetensors"),
        ("a.txt", "timm", r"not written as '\.txt'"),
        ("nowhere/a.safetensors", "vitlab", "does not exist"),
    ],
)
def test_where_a_model_cannot_be_written(
    name: str, format: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(WeightsError, match=message):
        vitlab.save_weights(build(), tmp_path / name, format=format)


def test_unknown_names_get_near_matches(tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="did you mean timm"):
        vitlab.save_weights(build(), tmp_path / "a.pth", format="tim")
    vitlab.save_weights(build(), tmp_path / "a.pth")
    with pytest.raises(UnknownName, match="did you mean image_size"):
        vitlab.load_weights(tmp_path / "a.pth", image_sizes=32)
    with pytest.raises(UnknownName, match="did you mean google"):
        vitlab.load_weights(tmp_path / "a.pth", format="googel")
    with pytest.raises(WeightsError, match="not of format 'timm'"):
        vitlab.load_weights(tmp_path / "a.pth", format="timm")
    with pytest.raises(WeightsError, match="valid: auto, bicubic, zoom"):
        vitlab.load_weights(tmp_path / "a.pth", resize="nearest")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"heads": 4}, "heads=4 contradicts the weights, which say 2"),
        ({"width": 64}, "width=64 contradicts"),
        ({"norm": "post"}, "norm='post' contradicts"),
        ({"attention": "lsa"}, "differ in 'encoder.blocks.0.attention.temperature'"),
        ({"pool": "map"}, "differ in 'pool"),
        ({"stored_image_size": 16}, "stored_image_size=16 contradicts"),
        ({"head": "mlp"}, "head='mlp' with representation_size 32 is not in the file"),
    ],
)
def test_contradictions(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    vitlab.save_weights(build(), tmp_path / "a.safetensors")
    with pytest.raises(WeightsError, match=message):
        vitlab.load_weights(tmp_path / "a.safetensors", **changes)


def test_free_fields_change_no_tensor(tmp_path: Path) -> None:
    vitlab.save_weights(build(), tmp_path / "a.safetensors")
    free = {"dropout": 0.1, "drop_path": 0.2, "dynamic_size": True, "pool": "mean_all"}
    config = vitlab.load_weights(tmp_path / "a.safetensors", **free).config
    assert all(getattr(config, name) == value for name, value in free.items())
    with pytest.raises(ConfigError, match="cannot be adapted"):
        vitlab.load_weights(tmp_path / "a.safetensors", image_size=13)
    with pytest.raises(ConfigError, match="'dropout'"):
        vitlab.load_weights(tmp_path / "a.safetensors", dropout="much")


def test_a_configuration_decides_the_head_and_what_costs_no_tensor(tmp_path: Path) -> None:
    model = build()
    vitlab.save_weights(model, tmp_path / "a.safetensors")
    wanted = replace(model.config, classes=3, drop_path=0.1)
    created = vitlab.create_model(wanted, pretrained=tmp_path / "a.safetensors")
    assert created.config == wanted
    other = replace(model.config, class_token=not model.config.class_token, pool="mean")
    with pytest.raises(WeightsError, match="class_token is True, but the model has False"):
        vitlab.create_model(other, pretrained=tmp_path / "a.safetensors")
