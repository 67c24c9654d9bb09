"""Names and methods of timm and transformers: the same numbers as vitlab's own."""

import logging
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import vitlab
from vitlab import VisionTransformer
from vitlab.errors import InputError, UnknownName, WeightsError
from vitlab.models.variants import configure, known_name, variant
from weights.hub_server import Hub, standing_in

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")


@pytest.fixture
def model() -> VisionTransformer:
    torch.manual_seed(random.randrange(1000))
    model = vitlab.create_model("vit_test", classes=7, registers=1).eval()
    assert model.head is not None
    torch.nn.init.normal_(model.head.weight)
    return model


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    (tmp_path / "home").mkdir()
    with standing_in(monkeypatch, tmp_path / "home") as started:
        yield started


def test_features_and_head_compose_to_forward(model: VisionTransformer) -> None:
    images = torch.randn(2, 3, 32, 32)
    tokens = model.forward_features(images)
    assert tokens.shape == (2, 1 + 1 + 16, model.num_features)
    torch.testing.assert_close(model.forward_head(tokens), model(images))
    pooled = model.forward_head(tokens, pre_logits=True)
    torch.testing.assert_close(pooled, model.features(images).pooled)


def test_intermediates(model: VisionTransformer) -> None:
    images = torch.randn(2, 3, 32, 32)
    last, maps = model.forward_intermediates(images, 1, norm=True)
    torch.testing.assert_close(last, model.forward_features(images))
    wanted = model.features(images).patches.permute(0, 3, 1, 2)
    assert len(maps) == 1
    torch.testing.assert_close(maps[0], wanted)
    flat = model.forward_intermediates(images, [-1, 0], output_fmt="NLC", intermediates_only=True)
    first = model.features(images, layers=[0]).layers[0].patches
    torch.testing.assert_close(flat[1], first.flatten(1, 2))
    with pytest.raises(InputError, match="output_fmt 'NHWC'; valid: NCHW, NLC"):
        model.forward_intermediates(images, output_fmt="NHWC")


@pytest.mark.parametrize("classes", [0, 5])
def test_a_new_head(model: VisionTransformer, classes: int) -> None:
    model.reset_classifier(classes)
    assert model.config.classes == classes
    found = model(torch.randn(2, 3, 32, 32))
    assert found.shape == (2, classes or model.num_features)
    assert not classes or not found.any()


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("vit_base_patch16_224", "vit_b16"),
        ("vit_tiny_patch16_384", "vit_ti16_384"),
        ("vit_large_patch32_224.orig_in21k", "vit_l32"),
        ("deit_small_patch16_224", "vit_s16"),
        ("vit_base_patch16_gap_224", "vit_b16_gap"),
    ],
)
def test_names_of_timm(theirs: str, ours: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert configure(theirs) == variant(ours)
    assert caplog.messages == [f"{theirs} is {ours} here"]
    assert known_name(ours) == ours


def test_other_names_stay_unknown() -> None:
    with pytest.raises(UnknownName, match="vit_giant_patch14_224"):
        vitlab.create_model("vit_giant_patch14_224")


def test_pretrained_true_is_one_of_the_table(caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level(logging.WARNING),
        pytest.raises(WeightsError, match=r"vit_b16\.augreg has"),
    ):
        vitlab.create_model("vit_base_patch16_224", pretrained=True)
    assert caplog.messages[-1] == "pretrained=True is vit_b16.augreg"
    with pytest.raises(WeightsError, match="no published weights of vit_test"):
        vitlab.create_model("vit_test", pretrained=True)
    assert vitlab.create_model("vit_test", pretrained=False).source is None


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("deit_small_patch16_224", "vit_s16.deit"),
        ("deit_base_patch16_384.fb_in1k", "vit_b16_384.deit"),
        ("vit_base_patch16_224.augreg_in21k", "vit_b16.augreg_in21k"),
        ("vit_tiny_patch16_384.augreg_in21k_ft_in1k", "vit_ti16_384.augreg"),
        ("vit_large_patch32_384.orig_in21k_ft_in1k", "vit_l32_384.in21k_in1k"),
        ("vit_huge_patch14_224", "vit_h14.in21k"),
        ("vit_base_patch32_224.sam_in1k", "vit_b32.sam"),
    ],
)
def test_the_tag_of_a_name_decides_the_weights(
    theirs: str, ours: str, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        caplog.at_level(logging.WARNING),
        pytest.raises(WeightsError, match=f"^{re.escape(ours)} has not been fetched"),
    ):
        vitlab.create_model(theirs, pretrained=True)
    assert f"pretrained=True is {ours}" in caplog.messages
    if "." in theirs:
        with pytest.raises(WeightsError, match=f"^{re.escape(ours)} has not been fetched"):
            vitlab.load_weights(theirs)


@pytest.mark.parametrize(
    ("theirs", "message"),
    [
        ("vit_base_patch16_224.augreg2_in21k_ft_in1k", "of that tag; valid: vit_b16.in21k, "),
        ("deit_small_patch16_224.fb_in22k", "of that tag; valid: vit_s16.augreg_in21k, "),
        ("deit_large_patch16_224", "no published weights of deit_large_patch16_224"),
    ],
)
def test_other_weights_are_refused_by_name(theirs: str, message: str) -> None:
    with pytest.raises(WeightsError, match=re.escape(message)):
        vitlab.create_model(theirs, pretrained=True)


def test_deit_3_is_no_plain_model_but_has_weights() -> None:
    with pytest.raises(UnknownName, match="deit3_small_patch16_224"):
        vitlab.create_model("deit3_small_patch16_224")
    with pytest.raises(WeightsError, match=r"^vit_s16\.deit3 has not been fetched"):
        vitlab.load_weights("deit3_small_patch16_224.fb_in1k")


def test_an_untagged_name_of_weights_gets_suggestions() -> None:
    with pytest.raises(WeightsError, match=r"did you mean .*vit_s16\.deit"):
        vitlab.load("deit_small_patch16_224")


def test_save_push_and_load_again(model: VisionTransformer, hub: Hub, tmp_path: Path) -> None:
    images = torch.randn(2, 3, 32, 32)
    model.save_pretrained(tmp_path / "saved")
    for found in (
        VisionTransformer.from_pretrained(tmp_path / "saved"),
        vitlab.load(tmp_path / "saved").model,
    ):
        torch.testing.assert_close(found(images), model(images), rtol=0, atol=0)
    assert model.push_to_hub("alice/trees").endswith("alice/trees")
    for found in (
        VisionTransformer.from_pretrained("alice/trees"),
        vitlab.load_weights("hf:alice/trees"),
        vitlab.load("hf:alice/trees").model,
        vitlab.create_model(pretrained="hf:alice/trees"),
    ):
        torch.testing.assert_close(found(images), model(images), rtol=0, atol=0)


def test_torch_hub_finds_the_entry_points(tmp_path: Path) -> None:
    code = (
        f"import torch; print(torch.hub.load({str(ROOT)!r}, 'create_model', 'vit_test', "
        "classes=3, source='local').config.classes)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["3"]
