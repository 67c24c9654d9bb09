"""Names of models: the exact size of each, and the parser behind them."""

from dataclasses import replace
from typing import Any

import pytest
import torch

import vitlab
from vitlab.errors import ConfigError, UnknownName, VitlabError
from vitlab.models.config import ViTConfig
from vitlab.models.variants import (
    ResNetConfig,
    TutorialCNNConfig,
    configure,
    create_model,
    variant,
    variants,
)
from vitlab.models.vit import VisionTransformer
from vitlab.registry import VARIANTS

PUBLISHED = {
    # The original's own counts, 1000 classes at 224 pixels.
    "vit_ti16": 5_717_416,
    "vit_s16": 22_050_664,
    "vit_s32": 22_878_952,
    "vit_b8": 86_576_872,
    "vit_b16": 86_567_656,
    "vit_b32": 88_224_232,
    "vit_l16": 304_326_632,
    "vit_l32": 306_535_400,
    "vit_h14": 632_045_800,
    "vit_r_ti16": 6_337_704,
    "vit_r26_s32": 36_431_912,
    "vit_r26_b32": 101_383_976,
    "vit_r50_b16": 98_659_112,
    "vit_r50_l32": 328_994_856,
    "vit_s16_gap": 22_049_896,
    "vit_s32_gap": 22_878_184,
    "vit_b16_gap": 86_566_120,
    "vit_b32_gap": 88_222_696,
    # The seed's CIFAR-10 network.
    "vit_seed": 7_690_762,
    # PyTorch's tutorial; ResNet-18 for 32x32 images; BiT's R50x1.
    "cnn_tutorial": 62_006,
    "resnet18_cifar": 11_173_962,
    "resnet50_bit": 25_549_352,
}
OURS = {
    "vit_s14": 22_004_584,
    "vit_b14": 86_475_496,
    "vit_l14": 304_203_752,
    "vit_r50_b32": 110_945_832,
    "vit_r50_l16": 316_483_624,
    "vit_ti16_384": 5_790_376,
    "vit_s16_384": 22_196_584,
    "vit_s32_384": 22_915_432,
    "vit_b16_384": 86_859_496,
    "vit_b32_384": 88_297_192,
    "vit_l16_384": 304_715_752,
    "vit_l32_384": 306_632_680,
    "vit_r_ti16_384": 6_355_944,
    "vit_r26_s32_384": 36_468_392,
    "vit_r26_b32_384": 101_456_936,
    "vit_r50_b16_384": 98_950_952,
    "vit_r50_b32_384": 111_018_792,
    "vit_r50_l16_384": 316_872_744,
    "vit_r50_l32_384": 329_092_136,
    "vit_cifar": 1_401_874,
    "vit_cifar_pure": 4_028_170,
    "vit_cifar_hybrid": 2_796_490,
    "vit_cifar_lite": 3_722_250,
    "vit_cifar_spt": 2_735_062,
    "vit_plain": 683_242,
    "vit_test": 24_234,
}
PARAMETERS = PUBLISHED | OURS
OTHERS = {"vit_seed", "vit_cifar", "vit_cifar_hybrid", "vit_cifar_spt"}
"""Those that are not a plain ViT."""


@pytest.fixture(autouse=True)
def own_variants(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names that a test registers are gone after it."""
    monkeypatch.setattr(VARIANTS, "_entries", dict(VARIANTS._entries))


def count(name: str, **changes: Any) -> int:
    with torch.device("meta"):
        model = create_model(name, **changes)
    return sum(parameter.numel() for parameter in model.parameters())


def closed_form(config: ViTConfig) -> int:
    """Parameters of a plain ViT, from the sizes alone."""
    assert isinstance(config.patch_size, int)
    width, mlp = config.width, config.mlp_width
    attention = 4 * width * width + 4 * width
    block = attention + 2 * width * mlp + mlp + width + 4 * width
    stem = config.channels * config.patch_size**2 * width + width
    tokens = (config.tokens + config.prefix) * width
    return stem + tokens + config.depth * block + 2 * width + (width + 1) * config.classes


def test_the_table_names_every_model_and_no_other() -> None:
    assert sorted(PARAMETERS) == sorted(variants())
    assert len(set(variants())) == len(variants())


@pytest.mark.parametrize("name", PARAMETERS)
def test_exact_number_of_parameters(name: str) -> None:
    assert count(name) == PARAMETERS[name]
    config = variant(name)
    if isinstance(config, ViTConfig) and name not in OTHERS and config.stem != "resnet":
        assert closed_form(config) == PARAMETERS[name]


def test_the_seed() -> None:
    config = variant("vit_seed")
    assert isinstance(config, ViTConfig)
    assert config == ViTConfig(
        width=768,
        depth=1,
        heads=12,
        mlp_width=3072,
        patch_size=16,
        image_size=32,
        classes=10,
        qkv_bias=False,
        proj_bias=False,
        patch_norm="after",
    )
    assert config.tokens == 5


def test_configurations_behind_some_names() -> None:
    assert variant("vit_b16") == ViTConfig(
        width=768, depth=12, heads=12, mlp_width=3072, patch_size=16
    )
    assert variant("vit_h14") == ViTConfig(
        width=1280, depth=32, heads=16, mlp_width=5120, patch_size=14
    )
    hybrid = variant("vit_r50_l32")
    assert isinstance(hybrid, ViTConfig)
    assert (hybrid.stem, hybrid.resnet_layers, hybrid.patch_size) == ("resnet", (3, 4, 6, 3), 1)
    assert hybrid.grid == (7, 7)
    assert variant("cnn_tutorial") == TutorialCNNConfig()
    assert variant("resnet50_bit") == ResNetConfig(family="bit", layers=(3, 4, 6, 3))


@pytest.mark.parametrize(
    ("name", "tokens"),
    [
        ("vit_b16", 197),
        ("vit_b32", 50),
        ("vit_b8", 785),
        ("vit_h14", 257),
        ("vit_b16_384", 577),
        ("vit_b16_gap", 196),
        ("vit_r_ti16", 50),
        ("vit_r26_s32", 50),
        ("vit_r50_b16", 197),
        ("vit_r50_b32", 50),
        ("vit_r50_l16", 197),
        ("vit_r50_l32_384", 145),
        ("vit_cifar", 64),
        ("vit_cifar_pure", 65),
        ("vit_cifar_hybrid", 65),
        ("vit_seed", 5),
        ("vit_test", 17),
    ],
)
def test_tokens(name: str, tokens: int) -> None:
    config = variant(name)
    assert isinstance(config, ViTConfig)
    assert config.tokens == tokens


def test_small_models_are_for_small_images() -> None:
    for name in [name for name in PARAMETERS if "cifar" in name and "resnet" not in name]:
        model = create_model(name).eval()
        with torch.no_grad():
            assert model(torch.randn(2, 3, 32, 32)).shape == (2, 10)


def test_suffixes() -> None:
    plain = variant("vit_b16")
    assert isinstance(plain, ViTConfig)
    assert variant("vit_b16_512") == replace(plain, image_size=512)
    assert variant("vit_b16_384_gap") == replace(
        plain, image_size=384, class_token=False, pool="mean"
    )
    assert variant("vit_b16_gap") == replace(plain, class_token=False, pool="mean")
    assert count("vit_b16_384_gap") == 86_566_120 + (576 - 196) * 768
    hybrid = variant("vit_r50_l32_gap")
    assert isinstance(hybrid, ViTConfig)
    assert (hybrid.class_token, hybrid.pool) == (False, "mean")
    small = variant("resnet18_cifar_64")
    assert isinstance(small, ResNetConfig)
    assert small.image_size == 64


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("vit_b61", "unknown model 'vit_b61'; did you mean "),
        ("vitb16", "did you mean vit_b16"),
        ("vit_b16_gap_384", "unknown model 'vit_b16_gap_384'; did you mean vit_b16_"),
        ("vit_b16_", "unknown model"),
        ("vit_b16_0384", "unknown model"),
        ("vit_b16_gap_gap", "unknown model"),
        ("", "unknown model ''; valid: cnn_tutorial"),
        ("zzz", "unknown model 'zzz'; valid: cnn_tutorial"),
        ("cnn_tutorial_gap", "model 'cnn_tutorial_gap': _gap is for Vision Transformers"),
        ("vit_b16_100", "image_size 100: height is not a multiple of patch_size 16"),
    ],
)
def test_names_that_are_none(name: str, message: str) -> None:
    with pytest.raises(VitlabError) as error:
        variant(name)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_kinds_of_errors() -> None:
    with pytest.raises(UnknownName):
        create_model("vit_b17")
    with pytest.raises(ConfigError):
        create_model("resnet18_cifar_gap")
    with pytest.raises(ConfigError, match="did you mean classes"):
        create_model("vit_b16", clases=3)
    with pytest.raises(ConfigError, match="width 25 does not split into 2 heads"):
        create_model("vit_test", width=25)


def test_changes_to_a_name() -> None:
    config = configure("vit_test", image_size=(32, 64), classes=3)
    assert isinstance(config, ViTConfig)
    assert (config.image_size, config.classes, config.width) == ((32, 64), 3, 32)
    model = create_model("vit_test", image_size=(32, 64), classes=3)
    assert isinstance(model, VisionTransformer)
    assert model(torch.randn(1, 3, 32, 64)).shape == (1, 3)
    assert configure(config) is config
    assert configure(config, classes=5) == replace(config, classes=5)
    again = create_model(config)
    assert isinstance(again, VisionTransformer)
    assert again.config == config


def test_public_names() -> None:
    assert vitlab.variants is variants
    model = vitlab.create_model("vit_test", classes=3)
    assert isinstance(model, VisionTransformer)
    assert model.config == configure("vit_test", classes=3)


def test_a_name_of_ones_own_is_listed() -> None:
    vitlab.register("variant", "vit_mine", replace(variant("vit_test"), classes=2))
    assert variants()[-1] == "vit_mine"
    assert variant("vit_mine") == replace(variant("vit_test"), classes=2)
    with pytest.raises(UnknownName, match="did you mean vit_mine"):
        variant("vit_mien")


@pytest.mark.parametrize(
    "name", ["vit_b16", "vit_test", "cnn_tutorial", "vit_b16_384", "vit_s32_512_gap"]
)
def test_names_of_ours_cannot_be_taken(name: str) -> None:
    before = variant(name)
    with pytest.raises(ConfigError, match=f"variant '{name}' is built in; choose another name"):
        vitlab.register("variant", name, replace(variant("vit_test"), classes=99))
    assert variant(name) == before
