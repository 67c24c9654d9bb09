"""One digest for one model, whatever its file; another for any other."""

import dataclasses
from pathlib import Path

import pytest
import torch

from data.colours import saved_model, small_model
from reference.foreign import without_note
from vitlab import create_model, load_weights, save_weights
from vitlab.weights.source import ADDED, fingerprint, network_digest

WIDE = {"width": 128}
"""Heads of 64, as formats without a config assume."""


def test_formats_do_not_matter(tmp_path: Path) -> None:
    model = small_model(**WIDE)
    found = set()
    for format, name in (("vitlab", "a.safetensors"), ("timm", "b.safetensors")):
        save_weights(model, tmp_path / name, format=format)
        found.add(fingerprint(load_weights(tmp_path / name, norm_eps=model.config.norm_eps)))
    assert found == {fingerprint(model)}
    assert all(len(digest) == 64 for digest in found)


def test_the_head_does_not_matter(tmp_path: Path) -> None:
    path = saved_model(tmp_path / "a.safetensors")
    assert fingerprint(load_weights(path, classes=7)) == fingerprint(load_weights(path))
    assert fingerprint(load_weights(path, dropout=0.1)) == fingerprint(load_weights(path))


@pytest.mark.parametrize("change", [{"norm_eps": 1e-3}, {"image_size": 40}])
def test_what_changes_features_matters(tmp_path: Path, change: dict[str, object]) -> None:
    save_weights(small_model(gelu="tanh"), tmp_path / "a.npz", format="google")
    without_note(tmp_path / "a.npz")
    plain = load_weights(tmp_path / "a.npz")
    changed = load_weights(tmp_path / "a.npz", **change)
    assert fingerprint(plain) != fingerprint(changed)


def test_every_number_matters() -> None:
    model = small_model()
    for name, parameter in model.named_parameters():
        before = fingerprint(model)
        with torch.no_grad():
            parameter.view(-1)[-1] += 1
        assert (fingerprint(model) == before) == name.startswith("head."), name


def test_cnns_have_one_too() -> None:
    torch.manual_seed(0)
    model = create_model("resnet18_cifar", layers=(1,), width=7)
    before = fingerprint(model)
    model(torch.randn(2, 3, 8, 8))
    assert fingerprint(model) != before  # BatchNorm has seen images


def test_digests_of_earlier_files_stay_valid() -> None:
    model = create_model("vit_test", depth=1)
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            parameter.copy_(torch.arange(parameter.numel()).view_as(parameter) % (7 + number))
    assert network_digest(model) == "e04cfdbd6532f50a5865f0aca3970563"
    assert fingerprint(model) == "772b8f8f49aff8507774618876fa8275b48fdb1fd097ec741407c1f2358cabb9"


def test_every_option_counts() -> None:
    config = create_model("vit_test").config
    for name, default in ADDED.items():
        assert getattr(config, name) == default
    model = create_model("vit_test", mlp_norm=True)
    found = network_digest(model), fingerprint(model)
    model.config = dataclasses.replace(model.config, mlp_norm=False)
    assert network_digest(model) != found[0]
    assert fingerprint(model) != found[1]
