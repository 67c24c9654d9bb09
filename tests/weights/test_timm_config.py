"""timm's config.json: every architecture and every argument is right or refused by name."""

import inspect
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import vitlab
from reference.foreign import same_logits
from reference.random_weights import randomise
from reference.torchvision_ops import declare
from vitlab.errors import VitlabError, WeightsError
from vitlab.models.config import pair
from vitlab.weights.formats.timm_config import FAMILIES, GATED, architectures

declare()
timm = pytest.importorskip("timm")

PLAIN = "vit_tiny_patch16_224"
SHRUNK: dict[str, Any] = {"depth": 2, "embed_dim": 64, "num_heads": 4, "num_classes": 7}
MODULES = ("vision_transformer", "deit", "vision_transformer_hybrid", "eva", "naflexvit", "beit")
FEW = (
    *("deit3_small_patch16_224", "flexivit_small", "vit_base_patch16_224_miil"),
    *("vit_base_patch16_gap_224", "vit_base_patch16_siglip_512", "vit_base_patch14_reg4_dinov2"),
    *("vit_so150m_patch16_reg4_gap_256", "vit_so400m_patch14_siglip_224", "vit_tiny_r_s16_p8_224"),
    *("vit_base_patch16_clip_224", "vit_base_patch32_clip_quickgelu_224", "eva02_tiny_patch14_224"),
    *("eva02_base_patch14_448", "eva_giant_patch14_clip_224", "vit_base_patch16_rope_ape_224"),
    *("vit_base_patch16_rope_224", "vit_betwixt_patch16_rope_reg4_gap_256"),
    *("vit_small_patch16_dinov3", "vit_small_plus_patch16_dinov3_qkvb"),
    *("vit_base_patch16_lingbot", "eva_giant_patch14_224", "deit_tiny_distilled_patch16_224"),
    *("vit_base_patch16_rpn_224", "vit_base_patch16_rope_mixed_224", "aimv2_large_patch14_224"),
    *("vit_small_patch16_rope_mixed_ape_224", "eva02_base_patch16_clip_224"),
    *("eva02_enormous_patch14_clip_224", "beitv2_base_patch16_224", "beit3_base_patch16_224"),
    *("vit_so150m_patch16_reg4_map_256", "vit_intern300m_patch14_448"),
    *("vit_pe_core_small_patch16_384", "vit_pe_lang_large_patch14_448"),
    *("vit_pe_core_gigantic_patch14_448", "vit_pe_spatial_tiny_patch16_512"),
)
REFUSED = (
    *("vit_base_patch16_18x2_224", "vit_pwee_patch16_reg1_gap_256"),
    *("vit_base_patch16_xp_224", "naflexvit_base_patch16_gap", "vit_base_patch16_radio_v3"),
)

FAMILY_SIZES: dict[str, tuple[str, dict[str, Any]]] = {
    "clip": ("vit_base_patch16_clip_224", {"depth": 3, "img_size": (48, 80)}),
    "clip without head": ("vit_huge_patch14_clip_quickgelu_224", {"depth": 1, "num_classes": 0}),
    "eva02": ("eva02_small_patch14_224", {"depth": 3, "img_size": (56, 84)}),
    "eva02 with norm": ("eva02_large_patch14_448", {"depth": 1, "embed_dim": 48, "num_heads": 3}),
    "dinov3": ("vit_base_patch16_dinov3", {"depth": 3, "img_size": (48, 80)}),
    "dinov3 plus": ("vit_huge_plus_patch16_dinov3", {"depth": 1, "num_classes": 0}),
    "dinov2 giant": ("vit_giant_patch14_reg4_dinov2", {"embed_dim": 48, "img_size": (42, 70)}),
    "rope": ("vit_small_patch16_rope_224", {"depth": 3, "img_size": (48, 80)}),
    "rope and table": ("vit_large_patch16_rope_ape_224", {"depth": 5, "img_size": 64}),
}


def names() -> list[str]:
    """Every architecture in the modules of timm that define plain ViTs and relatives."""
    found = [name for module in MODULES for name in timm.list_models(module=module)]
    assert len(found) > 200
    return sorted(found)


def saved(folder: Path, name: str, **arguments: Any) -> nn.Module:
    """A model with random weights, saved as timm does for the hub."""
    torch.manual_seed(0)
    theirs: nn.Module = timm.create_model(name, **arguments).eval()
    randomise(theirs)
    timm.models.save_for_hf(theirs, folder, safe_serialization=True)
    return theirs


def change(folder: Path, **keys: Any) -> None:
    """Set keys of the config.json in a folder."""
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | keys))


def with_argument(folder: Path, **arguments: Any) -> None:
    known = json.loads((folder / "config.json").read_text()).get("model_args", {})
    change(folder, model_args=known | arguments)


def check(name: str, folder: Path, arguments: Mapping[str, Any]) -> None:
    """The model of a folder is timm's, or refused by the name of its architecture."""
    theirs = saved(folder, name, **arguments)
    if name not in architectures():
        with pytest.raises(WeightsError, match=f"architecture '{name}' is not supported"):
            vitlab.load_weights(folder)
        return
    ours = vitlab.load_weights(folder)
    assert ours.source.assumed == ()
    same_logits(ours, theirs, pair(ours.config.image_size))


@pytest.mark.parametrize("name", FEW)
def test_covered(name: str, tmp_path: Path) -> None:
    assert name in architectures()
    check(name, tmp_path, SHRUNK)


@pytest.mark.parametrize("name", REFUSED)
def test_not_covered(name: str, tmp_path: Path) -> None:
    assert name not in architectures()
    check(name, tmp_path, SHRUNK)


@pytest.mark.slow
@pytest.mark.parametrize("name", names())
def test_every_architecture(name: str, tmp_path: Path) -> None:
    """Shrunk, so that all its arguments are read from the config."""
    family = architectures().get(name, {}).get("family")
    shrunk = {**SHRUNK, "embed_dim": 48} if family == "swiglu" else SHRUNK
    try:
        timm.create_model(name, **shrunk)
    except (AssertionError, TypeError) as error:
        assert name not in architectures()
        pytest.skip(f"timm cannot build it this small: {error}")
    check(name, tmp_path, shrunk)


@pytest.mark.slow
@pytest.mark.parametrize("name", architectures())
def test_arguments_of_the_table_are_timms(name: str) -> None:
    """As wide as it is: the name alone decides heads, pooling and activation."""
    with torch.device("meta"):
        theirs = timm.create_model(name)
    block, embed = theirs.blocks[0], theirs.patch_embed
    act = type(getattr(block.mlp, "act", None)).__name__.lower()
    row = architectures()[name]
    family = FAMILIES[row["family"]]
    expected = {
        "img_size": embed.img_size[0],
        "patch_size": embed.patch_size[0],
        "embed_dim": theirs.embed_dim,
        "depth": len(theirs.blocks),
        "num_heads": block.attn.num_heads,
        "mlp_ratio": row["mlp_ratio"],
        "global_pool": theirs.global_pool,
        "act_layer": {"gelutanh": "gelu_tanh", "quickgelu": "quick_gelu"}.get(act, "gelu"),
        "family": row["family"],
    }
    assert row == expected
    if row["family"] not in GATED:
        assert int(theirs.embed_dim * row["mlp_ratio"]) == block.mlp.fc1.out_features
    assert block.norm1.eps == family.get("norm_eps", 1e-6)
    rope = getattr(theirs, "rope", None)
    assert (rope is not None) == (family.get("rope") or family.get("position") == "rope" or False)
    assert rope is None or rope.temperature == family["rope_theta"]


def test_name_alone_decides_the_heads(tmp_path: Path) -> None:
    """A config without arguments, as earlier releases of timm wrote it."""
    theirs = saved(tmp_path, "test_vit", num_classes=7)
    change(tmp_path, model_args=None)
    assert vitlab.load_weights(tmp_path).config.heads == 2
    same_logits(vitlab.load_weights(tmp_path), theirs, (160, 160))


@pytest.mark.parametrize("case", FAMILY_SIZES)
def test_families_in_other_sizes(case: str, tmp_path: Path) -> None:
    """Odd depths, images that are not square, other channels and no head."""
    name, arguments = FAMILY_SIZES[case]
    theirs = saved(tmp_path, name, **{**SHRUNK, **arguments})
    ours = vitlab.load_weights(tmp_path)
    assert ours.source.assumed == ()
    assert ours.source.preprocessing is not None
    assert ours.source.preprocessing.mean == theirs.pretrained_cfg["mean"]
    same_logits(ours, theirs, pair(ours.config.image_size), ours.config.channels)


def test_unknown_architecture_loads_if_trusted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    theirs = saved(tmp_path, PLAIN, **SHRUNK)
    change(tmp_path, architecture="vit_of_my_own")
    with pytest.raises(WeightsError, match="architecture 'vit_of_my_own' is not supported"):
        vitlab.load_weights(tmp_path)
    ours = vitlab.load_weights(tmp_path, trust_architecture=True)
    (record,) = caplog.records
    assert "architecture 'vit_of_my_own' is a plain ViT" in record.getMessage()
    same_logits(ours, theirs, (224, 224))


UNDERSTOOD: dict[str, tuple[str, dict[str, Any]]] = {
    "img_size": (PLAIN, {"img_size": [48, 80]}),
    "patch_size": (PLAIN, {"patch_size": 32}),
    "in_chans": (PLAIN, {"in_chans": 1}),
    "num_classes": (PLAIN, {"num_classes": 3}),
    "global_pool": (PLAIN, {"global_pool": "avg"}),
    "embed_dim": (PLAIN, {"embed_dim": 96}),
    "depth": (PLAIN, {"depth": 3}),
    "num_heads": (PLAIN, {"num_heads": 8}),
    "mlp_ratio": (PLAIN, {"mlp_ratio": 2.5}),
    "qkv_bias": (PLAIN, {"qkv_bias": False}),
    "qk_norm": (PLAIN, {"qk_norm": True}),
    "init_values": (PLAIN, {"init_values": 0.5}),
    "class_token": (PLAIN, {"class_token": False, "global_pool": "avg"}),
    "pos_embed": (PLAIN, {"pos_embed": "none"}),
    "no_embed_class": (PLAIN, {"no_embed_class": True}),
    "reg_tokens": (PLAIN, {"reg_tokens": 3}),
    "fc_norm": (PLAIN, {"fc_norm": True}),
    "pool_include_prefix": (PLAIN, {"pool_include_prefix": True, "global_pool": "avg"}),
    "act_layer": (PLAIN, {"act_layer": "gelu_tanh"}),
    "norm_layer": (PLAIN, {"norm_layer": "layernorm"}),
    "embed_norm_layer": (PLAIN, {"embed_norm_layer": "layernorm"}),
    "pre_norm": (PLAIN, {"pre_norm": True}),
    "attn_layer": (PLAIN, {"attn_layer": "attn"}),
    "dynamic_img_size": (PLAIN, {"dynamic_img_size": True}),
    "act_layer of the name": ("vit_base_patch16_siglip_512", {"act_layer": "gelu"}),
    "registers without class token": (
        PLAIN,
        {"class_token": False, "reg_tokens": 2, "global_pool": "avg", "pool_include_prefix": True},
    ),
}
HARMLESS: dict[str, Any] = {
    **dict.fromkeys(("drop_rate", "pos_drop_rate", "patch_drop_rate", "proj_drop_rate"), 0.5),
    **dict.fromkeys(("attn_drop_rate", "drop_path_rate"), 0.5),
    "weight_init": "moco",
    "fix_init": True,
    "device": "cpu",
    "dtype": "float32",
}
WRONG: dict[str, tuple[Any, ...]] = {
    "act_layer": ("relu", "silu"),
    "global_pool": ("max", "avgmax", "", "prr"),
    "norm_layer": ("rmsnorm", "batchnorm2d"),
    "embed_norm_layer": ("rmsnorm",),
    "attn_layer": ("diff",),
    "mlp_layer": ("swiglu",),
    "embed_layer": ("hybrid",),
    "block_fn": ("ResPostBlock",),
    "pos_embed": ("rope",),
    "pre_norm": (True,),
    "final_norm": (False,),
    "proj_bias": (False,),
    "scale_attn_norm": (True,),
    "scale_mlp_norm": (True,),
    "dynamic_img_pad": (True,),
    "use_naflex": (True,),
    "num_heads": ("4", 4.0, True, 5, 0, -4),
    "patch_size": (7, [16, 16, 16]),
    "class_token": (False, "yes"),
    "qkv_bias": (False,),
    "qk_norm": (True,),
    "init_values": (0.1,),
    "reg_tokens": (2,),
    "fc_norm": (True,),
    "no_embed_class": (True,),
    "in_chans": (1,),
}


def test_every_argument_of_timm_is_classified() -> None:
    vit = timm.models.vision_transformer.VisionTransformer
    arguments = set(inspect.signature(vit).parameters)
    assert arguments - UNDERSTOOD.keys() - HARMLESS.keys() - WRONG.keys() == set()


@pytest.mark.parametrize("case", UNDERSTOOD)
def test_understood_argument(case: str, tmp_path: Path) -> None:
    name, arguments = UNDERSTOOD[case]
    theirs = saved(tmp_path, name, **{**SHRUNK, "img_size": 64, **arguments})
    ours = vitlab.load_weights(tmp_path)
    assert ours.source.assumed == ()
    same_logits(ours, theirs, pair(ours.config.image_size), ours.config.channels)


@pytest.mark.parametrize("argument", HARMLESS)
def test_harmless_argument(argument: str, tmp_path: Path) -> None:
    theirs = saved(tmp_path, PLAIN, **SHRUNK, img_size=64)
    with_argument(tmp_path, **{argument: HARMLESS[argument]})
    same_logits(vitlab.load_weights(tmp_path), theirs, (64, 64))


@pytest.mark.parametrize(("argument", "value"), [(k, v) for k, vs in WRONG.items() for v in vs])
def test_refused_argument(argument: str, value: Any, tmp_path: Path) -> None:
    """Also by an architecture that is trusted."""
    saved(tmp_path, PLAIN, **SHRUNK, img_size=64)
    with_argument(tmp_path, **{argument: value})
    if argument == "global_pool":
        change(tmp_path, global_pool=value)
    words = {"reg_tokens": "registers", "init_values": "layer_scale", "fc_norm": "norm_at"}
    words |= {"pre_norm": "embed_norm"}
    words |= {"num_heads": "heads", "in_chans": "channels", "no_embed_class": "pos_embed"}
    for trust in (False, True):
        with pytest.raises(VitlabError, match=words.get(argument, argument)):
            vitlab.load_weights(tmp_path, trust_architecture=trust)


def test_arguments_of_rotary_models_are_refused(tmp_path: Path) -> None:
    eva = set(inspect.signature(timm.models.eva.Eva).parameters)
    plain = set(inspect.signature(timm.models.vision_transformer.VisionTransformer).parameters)
    saved(tmp_path, PLAIN, **SHRUNK, img_size=64)
    config = (tmp_path / "config.json").read_text()
    for argument in sorted(eva - plain):
        (tmp_path / "config.json").write_text(config)
        with_argument(tmp_path, **{argument: True})
        with pytest.raises(WeightsError, match=f"argument '{argument}' is not supported"):
            vitlab.load_weights(tmp_path)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"global_pool": "max"}, "global_pool"),
        ({"act_layer": "relu"}, "act_layer"),
        ({"architecture": None}, "architecture None"),
        ({"architecture": ["vit_tiny_patch16_224"]}, "architecture"),
        ({"model_args": [1]}, "model_args"),
    ],
)
def test_wrong_keys_at_the_top(keys: dict[str, Any], message: str, tmp_path: Path) -> None:
    saved(tmp_path, PLAIN, **SHRUNK, img_size=64)
    change(tmp_path, **keys)
    with pytest.raises(WeightsError, match=message):
        vitlab.load_weights(tmp_path)


def test_labels_by_number(tmp_path: Path) -> None:
    saved(tmp_path, PLAIN, **SHRUNK, img_size=64)
    names = {str(i): f"class {i}" for i in (3, 0, 6, 1, 2, 5, 4)}
    change(tmp_path, label_names=names)
    assert vitlab.load_weights(tmp_path).source.labels == tuple(f"class {i}" for i in range(7))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"rope_type": "mixed"}, "key 'rope_type' .* is not supported"),
        ({"model_kwargs": {"act_layer": "relu"}}, "key 'model_kwargs' .* is not supported"),
        ({"label_names": "abcdefg"}, "label_names 'abcdefg'; valid: a list of names"),
        ({"pretrained_cfg": [1]}, "pretrained_cfg .1.; valid: an object"),
        ({"pretrained_cfg": {"act_layer": "relu"}}, "act_layer 'relu' is not supported"),
        ({"pretrained_cfg": {"global_pool": "max"}}, "global_pool 'max' contradicts"),
        ({"pretrained_cfg": {"architecture": "vit_base_patch16_rpn_224"}}, "contradicts"),
        (
            {"pretrained_cfg": {"mean": [0.5], "std": [0.5], "crop_mode": "border"}},
            "crop_mode 'border' is not supported",
        ),
    ],
)
def test_keys_outside_model_args_are_understood_or_refused(
    keys: dict[str, Any], message: str, tmp_path: Path
) -> None:
    saved(tmp_path, PLAIN, **SHRUNK)
    change(tmp_path, **keys)
    with pytest.raises(WeightsError, match=message):
        vitlab.load_weights(tmp_path)


def test_a_config_without_its_architecture_is_refused(tmp_path: Path) -> None:
    saved(tmp_path, PLAIN, **SHRUNK)
    path = tmp_path / "config.json"
    content = json.loads(path.read_text())
    del content["architecture"]
    path.write_text(json.dumps(content))
    with pytest.raises(WeightsError, match="architecture None is not supported"):
        vitlab.load_weights(tmp_path)
    assert vitlab.load_weights(tmp_path, trust_architecture=True).config.heads == 4


def test_a_config_of_unknown_format_is_an_assumption(tmp_path: Path) -> None:
    saved(tmp_path, PLAIN, **SHRUNK)
    (tmp_path / "config.json").write_text('{"activation": "relu"}')
    assert "nothing from config.json" in str(vitlab.load_weights(tmp_path).source.warning)
