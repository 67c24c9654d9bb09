"""timm's `config.json`: the architecture by name, and the arguments that change it.

Every argument is either understood, without effect on predictions, or rejected by name: tensors do
not show an activation, a pooling or rotary positions.
"""

import csv
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import cache
from importlib.resources import files
from typing import Any

from vitlab.errors import WeightsError
from vitlab.models.config import pair
from vitlab.weights.reading import flag, fraction, integer, one_of, size

POOLS = {"token": "cls", "avg": "mean", "map": "map"}
POOLS_OF = {"distilled": {"cls": "cls_dist"}, "map_patches": {"map": "map_patches"}}
"""Poolings of families whose tokens before the patches change them."""
ACTIVATIONS = {
    None: "erf",
    "": "erf",
    "gelu": "erf",
    "gelu_tanh": "tanh",
    "quick_gelu": "quick",
    "quickgelu": "quick",
}
NORMS = (None, "", "layernorm")
"""Spellings of timm's default, a LayerNorm with epsilon 1e-6."""

IDENTITY: dict[str, Callable[[str, Any], Any]] = {
    "embed_dim": integer,
    "depth": integer,
    "num_heads": integer,
    "mlp_ratio": fraction,
    "patch_size": size,
    "img_size": size,
    "in_chans": integer,
    "reg_tokens": integer,
    "qkv_bias": flag,
    "qk_norm": flag,
    "class_token": flag,
}
"""Arguments used unchanged, and the check of their value."""
FIELDS = {
    "embed_dim": "width",
    "depth": "depth",
    "num_heads": "heads",
    "patch_size": "patch_size",
    "img_size": "image_size",
    "in_chans": "channels",
    "reg_tokens": "registers",
    "qkv_bias": "qkv_bias",
    "qk_norm": "qk_norm",
    "class_token": "class_token",
}
UNDERSTOOD = frozenset(IDENTITY) | {
    "global_pool",
    "pool_include_prefix",
    "act_layer",
    "init_values",
    "fc_norm",
    "pos_embed",
    "no_embed_class",
    "pre_norm",
}
FIXED: dict[str, tuple[Any, ...]] = {
    "norm_layer": NORMS,
    "embed_norm_layer": NORMS,
    "attn_layer": ("", "attn"),
    "final_norm": (True,),
    "proj_bias": (True,),
    "scale_attn_norm": (False,),
    "scale_mlp_norm": (False,),
    "dynamic_img_pad": (False,),
    "use_naflex": (None, False),
}
"""Arguments that are supported with these values only."""
HARMLESS = frozenset(
    [
        *("num_classes", "dynamic_img_size", "weight_init", "fix_init", "device", "dtype"),
        *("drop_rate", "pos_drop_rate", "patch_drop_rate", "proj_drop_rate", "attn_drop_rate"),
        *("drop_path_rate", "pretrained_strict"),
    ]
)
"""Arguments without effect on the prediction for an image of the model's own size.

The head's tensors decide the number of classes.
"""
DESCRIPTIVE = frozenset(
    [
        *("architecture", "num_features", "model_args", "pretrained_cfg", "tag", "source", "url"),
        *("file", "state_dict", "hf_hub_id", "hf_hub_filename", "custom_load", "input_size"),
        *("test_input_size", "min_input_size", "fixed_input_size", "interpolation", "crop_pct"),
        *("test_crop_pct", "crop_mode", "mean", "std", "label_offset", "label_names"),
        *("label_descriptions", "pool_size", "test_pool_size", "first_conv", "classifier"),
        *("notice", "license", "licence", "description", "origin_url", "paper_name", "paper_ids"),
        *("notes", "version", "library_name"),
    ]
)
"""Keys of the config and of `pretrained_cfg` that are not arguments of the architecture."""
CONSTANTS = {
    "norm": "pre",
    "rope": False,
    "norm_eps": 1e-6,
    "resnet_norm_eps": 1e-5,
    "resnet_std_eps": 1e-8,
    "resnet_std_eps_at": "variance",
}
"""Numbers in timm's code that no supported argument changes."""

FAMILIES: dict[str, dict[str, Any]] = {
    "": {},
    "clip": {"embed_norm": True, "norm_eps": 1e-5},
    "eva": {},
    "eva02": {
        "rope": True,
        "rope_form": "eva",
        "rope_theta": 1e4,
        "position_grid": (16, 16),
    },
    "dinov3": {
        "position": "rope",
        "rope_form": "dinov3",
        "rope_theta": 100.0,
        "norm_eps": 1e-5,
    },
    "rope": {"position": "rope", "rope_form": "axial", "rope_theta": 100.0},
    "rope_ape": {
        "rope": True,
        "rope_form": "axial",
        "rope_theta": 100.0,
        "position_prefix": "none",
    },
    "rope_reg": {
        "position": "rope",
        "rope_form": "eva",
        "rope_theta": 1e4,
        "position_grid": (16, 16),
    },
    "swiglu": {},
    "distilled": {},
    "rpn": {"norm": "res_post"},
    "eva02_post": {"norm": "res_post"},
    "eva02_clip": {
        "rope": True,
        "rope_form": "eva",
        "rope_theta": 1e4,
        "position_grid": (16, 16),
    },
    "rope_mixed": {"position": "rope", "rope_form": "mixed", "rope_theta": 10.0},
    "rope_mixed_ape": {
        "rope": True,
        "rope_form": "mixed",
        "rope_theta": 10.0,
        "position_prefix": "none",
    },
    "pe_core": {
        "rope": True,
        "rope_form": "pe",
        "rope_theta": 1e4,
        "norm_eps": 1e-5,
        "pool_heads": 8,
    },
    "pe": {
        "rope": True,
        "rope_form": "pe",
        "rope_theta": 1e4,
        "norm_eps": 1e-5,
        "norm_at": "none",
    },
    "beit": {},
    "map_patches": {},
    "intern": {"norm_at": "none"},
    "aimv2": {"norm_eps": 1e-5},
    "beit3": {"norm_eps": 1e-5},
}
"""Fields of an architecture's family that differ from a plain ViT and are not arguments here."""
GATED = ("eva02", "eva02_clip", "dinov3", "swiglu", "aimv2")
"""Families with gated MLPs, whose width is not `mlp_ratio` times that of the tokens."""


@cache
def architectures() -> dict[str, dict[str, Any]]:
    """Arguments of every supported architecture by name, from timm's own definitions."""
    text = (files("vitlab.weights.formats") / "timm_models.csv").read_text(encoding="utf-8")
    found = {}
    for row in csv.DictReader(text.splitlines()):
        name, ratio = row.pop("architecture"), row.pop("mlp_ratio")
        words = {key: row.pop(key) for key in ("global_pool", "act_layer", "family")}
        numbers = {key: int(value) for key, value in row.items()}
        found[name] = {**numbers, **words, "mlp_ratio": float(Fraction(ratio))}
    return found


Fields = dict[str, Any]


def is_timm(content: Mapping[str, Any]) -> bool:
    """True if a `config.json` is one of timm's."""
    return any(key in content for key in ("architecture", "model_args", "pretrained_cfg"))


def timm_fields(content: Mapping[str, Any], *, trust: bool) -> tuple[Fields, Fields, list[str]]:
    """Fields stated in the config, with those of the architecture, and assumptions.

    `trust` accepts an unknown architecture as a plain ViT.
    """
    name = content.get("architecture")
    given, notes = _given(content, trust=trust)
    known, strange = _architecture(name, trust=trust)
    family = known.get("family", "")
    arguments = {**known, **given}
    arguments.pop("family", None)
    for argument, value in arguments.items():
        if argument in FIXED:
            one_of(argument, value, FIXED[argument])
        elif argument not in UNDERSTOOD | HARMLESS:
            valid = ", ".join(sorted(UNDERSTOOD | HARMLESS | set(FIXED)))
            raise WeightsError(f"model argument {argument!r} is not supported; valid: {valid}")
    usual = CONSTANTS | FAMILIES[family] | _fields(arguments, family) if known else {}
    if usual.get("rope_form") == "pe":  # on the grid of the published model, whatever `img_size`
        usual["position_grid"] = (known["img_size"] // known["patch_size"],) * 2
    return _fields(given, family), usual, strange + notes


def _given(content: Mapping[str, Any], *, trust: bool) -> tuple[dict[str, Any], list[str]]:
    """Arguments in `model_args`, at the top level and in `pretrained_cfg`, which must agree.

    Any other key raises; with `trust`, it is an assumption.
    """
    inside = _mapping(content, "model_args")
    pretrained = _mapping(content, "pretrained_cfg")
    names = UNDERSTOOD | HARMLESS | set(FIXED)
    given, notes = dict(inside), []
    for key, value in (*content.items(), *pretrained.items()):
        if key in names:
            if key in given and given[key] != value and key not in HARMLESS:
                raise WeightsError(f"{key} {value!r} contradicts {key} {given[key]!r}")
            given.setdefault(key, value)
        elif key not in DESCRIPTIVE:
            if not trust:
                raise WeightsError(
                    f"key {key!r} (value {str(value)[:60]!r}) is not supported; valid: the keys "
                    f"that timm writes; trust_architecture=True ignores it, with a warning"
                )
            notes.append(f"key {key!r} of config.json changes nothing")
    name = content.get("architecture")
    if pretrained.get("architecture") not in (None, name):
        raise WeightsError(
            f"architecture {name!r} contradicts pretrained_cfg: {pretrained['architecture']!r}"
        )
    if "num_features" in content:
        given.setdefault("embed_dim", content["num_features"])
    return given, notes


def _mapping(content: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = content.get(key) or {}
    if not isinstance(value, dict):
        raise WeightsError(f"{key} {value!r}; valid: an object of names and values")
    return value


def _architecture(name: Any, *, trust: bool) -> tuple[dict[str, Any], list[str]]:
    plain = name.partition(".")[0] if isinstance(name, str) else ""
    known = architectures().get(plain)
    if known is not None:
        return known, []
    if trust:
        return {}, [f"architecture {name!r} is a plain ViT"]
    raise WeightsError(
        f"architecture {name!r} is not supported; valid: timm's plain ViTs (docs/weights.md); "
        f"trust_architecture=True loads it as one, with a warning"
    )


def _fields(arguments: Mapping[str, Any], family: str) -> Fields:
    values = {key: read(key, arguments[key]) for key, read in IDENTITY.items() if key in arguments}
    fields = {FIELDS[key]: value for key, value in values.items() if key in FIELDS}
    if "embed_dim" in values and "mlp_ratio" in values and family not in GATED:
        fields["mlp_width"] = int(values["embed_dim"] * values["mlp_ratio"])
    _check_grid(fields)
    if "act_layer" in arguments:
        fields["gelu"] = ACTIVATIONS[one_of("act_layer", arguments["act_layer"], ACTIVATIONS)]
    if "global_pool" in arguments:
        pool = _pool(arguments)
        fields["pool"] = POOLS_OF.get(family, {}).get(pool, pool)
    if arguments.get("fc_norm") is not None:
        fields["norm_at"] = "pooled" if flag("fc_norm", arguments["fc_norm"]) else "tokens"
    if "init_values" in arguments:
        fields["layer_scale"] = _layer_scale(arguments["init_values"])
    if "pos_embed" in arguments:
        word = one_of("pos_embed", arguments["pos_embed"], ("learn", "none", ""))
        fields["position"] = "learned1d" if word == "learn" else "none"
    if "no_embed_class" in arguments:
        without = flag("no_embed_class", arguments["no_embed_class"])
        fields["position_prefix"] = "none" if without else "all"
    if "pre_norm" in arguments:
        fields["embed_norm"] = flag("pre_norm", arguments["pre_norm"])
    if arguments.get("embed_norm_layer"):
        fields["patch_norm"] = "after"
    return fields


def _check_grid(fields: Mapping[str, Any]) -> None:
    """Raise if timm would cut off the last pixels of an image."""
    image, patch = fields.get("image_size"), fields.get("patch_size")
    if image and patch and any(a % b for a, b in zip(pair(image), pair(patch), strict=True)):
        raise WeightsError(f"img_size {image}; valid: a multiple of patch_size {patch}")


def _pool(arguments: Mapping[str, Any]) -> str:
    pool = POOLS[one_of("global_pool", arguments["global_pool"], POOLS)]
    everything = flag("pool_include_prefix", arguments.get("pool_include_prefix", False))
    return "mean_all" if pool == "mean" and everything else pool


def _layer_scale(value: Any) -> float | None:
    """timm has LayerScale where the initial value is neither None nor zero."""
    return fraction("init_values", value) if value else None
