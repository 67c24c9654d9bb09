"""What a configuration refuses, in one line that says what was found and what is valid."""

from dataclasses import FrozenInstanceError, replace
from typing import Any

import pytest

from vitlab.config import from_dict, to_dict
from vitlab.errors import ConfigError, UnknownName, VitlabError
from vitlab.models.config import ViTConfig, pair
from vitlab.models.vit import VisionTransformer

BASE = ViTConfig(width=24, depth=2, heads=3, mlp_width=32, patch_size=4, image_size=16)
CONV = {"stem": "conv"}

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"width": 0}, "width 0 is not at least 1"),
    ({"depth": -1}, "depth -1 is negative"),
    ({"depth": 0, "pool_after": 1}, "pool_after 1; valid with depth 0"),
    ({"heads": -2}, "heads -2 is not at least 1"),
    ({"mlp_width": 0}, "mlp_width 0 is not at least 1"),
    ({"channels": 0}, "channels 0 is not at least 1"),
    ({"resnet_width": 0}, "resnet_width 0 is not at least 1"),
    ({"head_width": 0}, "head_width 0 is not at least 1"),
    ({"classes": -1}, "classes -1 is negative"),
    ({"registers": -1}, "registers -1 is negative"),
    ({"image_size": 0}, "image_size 0 is not at least 1"),
    ({"image_size": (16, 0)}, "image_size (16, 0) is not at least 1"),
    ({"patch_size": (0, 4)}, "patch_size (0, 4) is not at least 1"),
    ({"dropout": 1.0}, "dropout 1.0 is not in [0, 1)"),
    ({"attention_dropout": -0.1}, "attention_dropout -0.1 is not in [0, 1)"),
    ({"drop_path": float("nan")}, "drop_path nan is not in [0, 1)"),
    ({"norm_eps": 0.0}, "norm_eps 0.0 is not positive"),
    ({"resnet_norm_eps": -1.0}, "resnet_norm_eps -1.0 is not positive"),
    ({"resnet_std_eps": 0.0}, "resnet_std_eps 0.0 is not positive"),
    ({"rope_theta": 0.0}, "rope_theta 0.0 is not positive"),
    ({"stem": "patches"}, "unknown stem 'patches'; did you mean patch?"),
    ({"position": "rop"}, "unknown position 'rop'; did you mean rope?"),
    ({"attention": "xyz"}, "valid: axial, full, lsa, mean, sliding, sparse"),
    ({"pool": "max"}, "unknown pool 'max'"),
    ({"head": "tanh"}, "unknown head 'tanh'; valid: linear, mlp, projection"),
    ({"norm": "none"}, "unknown norm 'none'"),
    ({"norm_at": "end"}, "unknown norm_at 'end'"),
    ({"gelu": "fast"}, "unknown gelu 'fast'; valid: erf, quick, tanh"),
    ({"patch_norm": "before"}, "unknown patch_norm 'before'"),
    ({"position_at": "every"}, "unknown position_at 'every'; did you mean every_layer?"),
    ({"position_prefix": "x"}, "unknown position_prefix 'x'; valid: all, cls, none"),
    ({"position_resize": "linear"}, "unknown position_resize 'linear'"),
    ({"conv_downsample": "max"}, "unknown conv_downsample 'max'"),
    ({"conv_norm": "layer"}, "unknown conv_norm 'layer'"),
    ({"conv_activation": "selu"}, "unknown conv_activation 'selu'"),
    ({"resnet_std_eps_at": "mean"}, "unknown resnet_std_eps_at 'mean'"),
    ({"image_size": 18}, "image_size 18: height is not a multiple of patch_size 4"),
    ({"image_size": (16, 18)}, "image_size (16, 18): width is not a multiple of patch_size 4"),
    ({"image_size": 2}, "image_size 2: height is not a multiple of patch_size 4"),
    ({"patch_size": (4, 5)}, "width is not a multiple of patch_size (4, 5)"),
    (
        {"stem": "resnet", "resnet_layers": (1, 1), "image_size": 40},
        "image_size 40: height (feature map height 5) is not a multiple of patch_size 4",
    ),
    ({"stem": "resnet", "resnet_width": 48}, "resnet_width 48 is not a multiple of 32"),
    ({"stem": "resnet", "resnet_layers": (2, 0)}, "resnet_layers (2, 0)"),
    ({**CONV, "conv_widths": ()}, "conv_widths () needs one entry fewer than conv_strides (2, 2)"),
    ({**CONV, "conv_strides": ()}, "conv_strides ()"),
    ({**CONV, "conv_widths": (0,)}, "conv_widths (0,)"),
    ({**CONV, "conv_strides": (-2, -2)}, "conv_strides (-2, -2)"),
    ({**CONV, "patch_size": 8}, "patch_size 8 is not the product of conv_strides (2, 2)"),
    ({**CONV, "patch_size": (4, 2)}, "patch_size (4, 2) is not the product of"),
    (
        {**CONV, "conv_pool_at": "before", "conv_downsample": "stride"},
        "conv_pool_at 'before' needs conv_downsample 'pool', not 'stride'",
    ),
    ({"conv_pool_at": "inside"}, "unknown conv_pool_at 'inside'; valid: after, before"),
    ({**CONV, "patch_norm": "both"}, "patch_norm 'both' needs stem 'patch' or 'shifted'"),
    (
        {"stem": "resnet", "patch_norm": "both", "patch_size": 1},
        "patch_norm 'both' needs stem 'patch' or 'shifted', not 'resnet'",
    ),
    ({"class_token": False}, "pool 'cls' needs class_token=True; valid without one: mean"),
    ({"representation_size": 8}, "representation_size 8 needs head='mlp' or 'projection'"),
    ({"head": "mlp", "representation_size": 0}, "representation_size 0 is not at least 1"),
    ({"norm_at": "pooled", "norm": "post"}, "norm_at 'pooled' needs norm='pre'"),
    ({"norm_at": "pooled", "pool": "map"}, "and pool cls, mean or mean_all"),
    ({"norm_at": "pooled", "pool": "cls_mean"}, "and pool cls, mean or mean_all"),
    ({"pool": "cls_dist"}, "pool 'cls_dist' needs registers of 1 or more"),
    ({"pool": "cls_mean", "class_token": False}, "pool 'cls_mean' needs class_token=True"),
    ({"pool_heads": 3}, "pool_heads 3 needs pool 'map' or 'map_patches'"),
    ({"pool_mlp_width": 0, "pool": "map"}, "pool_mlp_width 0 needs pool"),
    ({"pool_heads": 5, "pool": "map"}, "does not split into 5 heads of attention pooling"),
    ({"rope_periods": (1.0,)}, "rope_periods need rotary positions"),
    (
        {"rope_periods": (1.0,), "position": "rope", "rope_form": "mixed"},
        "whose rope_form is not 'mixed'",
    ),
    ({"rope_periods": (1.0,) * 99, "rope": True}, "rope_periods has 99 numbers; valid:"),
    (
        {"relative_table": "blocks", "position": "relative_bias"},
        "relative_table 'blocks' with position 'relative_bias'",
    ),
    (
        {"relative_table": "shared", "pool_after": 1},
        "relative_table 'shared' with pool_after",
    ),
    *(
        (
            {"position_at": place, "position": position},
            f"position_at {place!r} needs an additive position "
            f"(learned1d, learned2d, sincos2d, conditional), not {position!r}",
        )
        for place in ("every_layer", "shared_layers")
        for position in ("none", "relative", "relative_bias", "rope")
    ),
    ({"pool_after": 0}, "pool_after 0; valid with depth 2: 1 to 1"),
    ({"pool_after": 2}, "pool_after 2; valid with depth 2: 1 to 1"),
    ({"pool_after": 1, "depth": 1}, "pool_after 1; valid with depth 1: None"),
    (
        {"pool_after": 1, "image_size": (16, 20)},
        "image_size (16, 20): the grid of 4x5 patches is not even in both directions, "
        "which pool_after 1 needs",
    ),
    ({"pool_after": 1, "image_size": (12, 16)}, "the grid of 3x4 patches is not even"),
    *(
        (
            {"pool_after": 1, "position_at": place, "position": position},
            f"pool_after 1 with position_at {place!r}: a table of {position!r} fits one grid; "
            f"valid: position_at 'stem', or 'conditional'",
        )
        for place in ("every_layer", "shared_layers")
        for position in ("learned1d", "sincos2d")
    ),
    (
        {"attention": "lsa", "class_token": False, "pool": "mean", "image_size": 8}
        | {"pool_after": 1},
        "attention 'lsa' masks a token's view of itself and needs 2 tokens",
    ),
    ({"relative_local": -1.0, "position": "relative_bias"}, "relative_local -1.0 is negative"),
    (
        {"relative_local": 0.5, "position": "relative"},
        "relative_local 0.5 needs position 'relative_bias', which has a table per head, "
        "not 'relative'",
    ),
    ({"position_std": 0.0}, "position_std 0.0 is not positive"),
    (
        {"position_std": 0.7, "position": "sincos2d"},
        "position_std 0.7 needs position 'learned1d' or 'learned2d', not 'sincos2d'",
    ),
    ({"position": "learned2d", "width": 27}, "'learned2d' needs an even width, not 27"),
    ({"position": "sincos2d", "width": 18}, "'sincos2d' needs a width divisible by 4, not 18"),
    ({"position": "rope", "width": 18}, "'rope' needs a head width divisible by 4, not 6"),
    ({"position": "rope", "head_width": 7}, "'rope' needs a head width divisible by 4, not 7"),
    ({"position": "rope", "position_grid": (0, 4)}, "position_grid (0, 4) is not at least 1"),
    ({"rope": True, "position": "relative"}, "rope=True with position 'relative'; valid: one"),
    ({"width": 25}, "width 25 does not split into 3 heads"),
    ({"heads": 48}, "width 24 does not split into 48 heads"),
    ({"width": 25, "head_width": 8, "pool": "map"}, "width 25 does not split into 3 heads"),
    ({"key_bias": False, "qkv_bias": False}, "key_bias=False needs qkv_bias=True"),
    ({**CONV, "patch_bias": False}, "patch_bias=False needs stem 'patch', not 'conv'"),
    ({"proj": False, "head_width": 7}, "proj=False needs heads x head_width = width, found 3 x 7"),
    ({"branch_norm": -0.1}, "branch_norm -0.1 is negative"),
    (
        {"branch_norm": 0.2, "layer_scale": 0.1},
        "branch_norm 0.2 and layer_scale 0.1: both scale what a branch adds; valid: one of them",
    ),
    (
        {"branch_norm": 0.2, "zero_init_residual": True},
        "branch_norm 0.2 with zero_init_residual=True: a LayerNorm of nothing; "
        "valid: zero_init_residual=False",
    ),
    (
        {"proj": False, "zero_init_residual": True},
        "zero_init_residual=True needs proj=True: without it no projection ends attention",
    ),
    ({"attention": "sliding", "window_size": 4}, "window_size 4 is not an odd positive number"),
    ({"attention": "sliding", "window_size": -1}, "window_size -1 is not an odd positive number"),
    ({"attention": "sparse", "window_size": 1}, "window_size 1 is not at least 2"),
    (
        {"attention": "lsa", "class_token": False, "pool": "mean", "image_size": 4},
        "attention 'lsa' masks a token's view of itself and needs 2 tokens",
    ),
]


@pytest.mark.usefixtures("no_type_checks")
@pytest.mark.parametrize(("changes", "message"), REFUSED, ids=lambda value: str(value)[:60])
def test_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(VitlabError) as error:
        replace(BASE, **changes)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert isinstance(error.value, ConfigError | UnknownName)


ACCEPTED: list[dict[str, Any]] = [
    {"width": 25, "head_width": 8},
    {"proj": False, "head_width": 4, "heads": 6},
    {"window_size": 4},
    {"window_size": 0},
    {"attention": "sparse", "window_size": 2},
    {"attention": "sliding", "window_size": 99},
    {"attention": "lsa", "image_size": 4},
    {"classes": 0},
    {"stem": "resnet", "patch_size": 1, "image_size": (33, 17)},
    {"stem": "resnet", "patch_size": 1, "resnet_layers": (1, 1, 1), "image_size": 3},
    {"conv_widths": (7, 8)},
    {"pool": "mean_all", "class_token": False},
    {"position": "rope", "head_width": 12},
]


@pytest.mark.parametrize("changes", ACCEPTED, ids=str)
def test_accepted_and_built(changes: dict[str, Any]) -> None:
    config = replace(BASE, **changes)
    assert VisionTransformer(config).config == config


def test_derived_numbers() -> None:
    config = ViTConfig(
        width=768,
        depth=12,
        heads=12,
        mlp_width=3072,
        patch_size=(16, 8),
        image_size=(224, 320),
        registers=4,
        position_prefix="all",
    )
    assert config.key_width == 64
    assert config.grid == (14, 40)
    assert config.prefix == 5
    assert config.positioned_prefix == 5
    assert config.tokens == 565
    assert config.representation == 768
    assert replace(config, position_prefix="cls").positioned_prefix == 1
    assert replace(config, position_prefix="none").positioned_prefix == 0
    gap = replace(config, class_token=False, pool="mean", position_prefix="cls")
    assert (gap.prefix, gap.positioned_prefix) == (4, 0)
    assert replace(config, head_width=80).key_width == 80
    assert replace(config, head="mlp").representation == 768
    assert replace(config, head="mlp", representation_size=99).representation == 99
    assert pair(3) == (3, 3)
    assert pair((2, 5)) == (2, 5)


@pytest.mark.parametrize(
    ("layers", "size", "grid"),
    [
        ((), (224, 224), (56, 56)),
        ((2,), (224, 224), (56, 56)),
        ((3, 4, 9), (224, 224), (14, 14)),
        ((3, 4, 6, 3), (224, 384), (7, 12)),
        ((1, 1), (33, 17), (5, 3)),  # every halving rounds up
    ],
)
def test_grid_of_a_hybrid(
    layers: tuple[int, ...], size: tuple[int, int], grid: tuple[int, int]
) -> None:
    config = replace(BASE, stem="resnet", patch_size=1, resnet_layers=layers, image_size=size)
    assert config.grid == grid


def test_defaults_are_the_papers() -> None:
    config = ViTConfig(width=768, depth=12, heads=12, mlp_width=3072, patch_size=16)
    assert to_dict(config) == {
        "width": 768,
        "depth": 12,
        "heads": 12,
        "mlp_width": 3072,
        "patch_size": 16,
        "image_size": 224,
        "channels": 3,
        "classes": 1000,
        "head_width": None,
        "stem": "patch",
        "resnet_layers": [],
        "resnet_width": 64,
        "resnet_norm_eps": 1e-6,
        "resnet_std_eps": 1e-5,
        "resnet_std_eps_at": "std",
        "conv_strides": [2, 2],
        "conv_widths": [64],
        "conv_downsample": "pool",
        "conv_pool_at": "after",
        "conv_norm": "none",
        "conv_activation": "relu",
        "patch_norm": "none",
        "patch_bias": True,
        "embed_norm": False,
        "position": "learned1d",
        "position_at": "stem",
        "position_prefix": "cls",
        "position_grid": None,
        "position_resize": "bicubic",
        "position_std": None,
        "rope": False,
        "rope_theta": 100.0,
        "rope_form": "axial",
        "rope_periods": None,
        "relative_table": "none",
        "relative_local": 0.0,
        "dynamic_size": False,
        "class_token": True,
        "registers": 0,
        "pool": "cls",
        "pool_heads": None,
        "pool_mlp_width": None,
        "unit_norm": False,
        "head": "linear",
        "representation_size": None,
        "norm": "pre",
        "norm_kind": "layer",
        "norm_eps": 1e-6,
        "norm_at": "tokens",
        "norm_bias": True,
        "attention": "full",
        "window_size": 7,
        "mlp_activation": "gelu",
        "gelu": "erf",
        "mlp_bias": True,
        "mlp_norm": False,
        "qkv_bias": True,
        "key_bias": True,
        "proj": True,
        "proj_bias": True,
        "qk_norm": False,
        "attention_norm": False,
        "layer_scale": None,
        "branch_norm": None,
        "pool_after": None,
        "zero_init_residual": False,
        "dropout": 0.0,
        "attention_dropout": 0.0,
        "drop_path": 0.0,
    }


def test_round_trip_and_frozen() -> None:
    config = replace(
        BASE, image_size=(16, 32), patch_size=(4, 8), conv_strides=(4, 1), position_grid=(3, 5)
    )
    assert from_dict(ViTConfig, to_dict(config)) == config
    assert hash(config) == hash(from_dict(ViTConfig, to_dict(config)))
    with pytest.raises(FrozenInstanceError):
        config.width = 3  # type: ignore[misc]
