"""timm's names, which are also those of DeiT, DINO, DINOv2 and MAE from facebookresearch."""

import re
from collections.abc import Collection
from typing import Any

from vitlab.errors import WeightsError
from vitlab.models.config import ViTConfig
from vitlab.weights.formats.rules import (
    Dialect,
    Inferred,
    Layout,
    Rule,
    Shapes,
    any_layer,
    both,
    classes_of,
    layer_shape,
    moved,
    numbered,
    require,
    require_even_heads,
    require_plain,
    same,
    sized,
    square_or_pair,
)

BACKBONE = "patch_embed.backbone"
TRAINING_ONLY = re.compile(r"mask_token$|decoder_")
"""Tensors of DINOv2 (the token of masked patches) and of MAE (its decoder)."""
SCALES = {"": ("ls1.gamma", "ls2.gamma"), "gamma": ("gamma_1", "gamma_2")}
"""LayerScale of timm and DINOv2, and of DeiT-III's own files."""


def recognise(names: Collection[str]) -> bool:
    return any(re.match(r"blocks\.\d+\.(attn|norm1|mlp)\.", name) for name in names)


def infer(shapes: Shapes, hints: dict[str, Any]) -> Inferred:
    """Config except heads, the epsilons, the GELU and, with a class token, the pool."""
    depth = numbered(shapes, r"blocks\.(\d+)\.")
    width, channels, height, patch_width = sized(shapes, "patch_embed.proj.weight", 4)
    inner = layer_shape(shapes, "blocks.{}.attn.qkv.weight", depth, 2)[0] // 3
    q_norm = any_layer(shapes, "blocks.{}.attn.q_norm.weight", depth)
    registers = next((n for n in ("reg_token", "register_tokens") if n in shapes), None)
    gamma = any_layer(shapes, "blocks.{}.gamma_1", depth)
    scaled = gamma or any_layer(shapes, "blocks.{}.ls1.gamma", depth)
    decided: dict[str, Any] = {
        "width": width,
        "depth": depth,
        "mlp_width": layer_shape(shapes, "blocks.{}.mlp.fc1.weight", depth, 2)[0],
        "patch_size": square_or_pair(height, patch_width),
        "patch_norm": "after" if "patch_embed.norm.weight" in shapes else "none",
        "channels": channels,
        "classes": classes_of(shapes, "head.weight", "head.bias", 0),
        "head": "linear",
        "class_token": "cls_token" in shapes,
        "registers": sized(shapes, registers, 3)[1] if registers else 0,
        "qkv_bias": any_layer(shapes, "blocks.{}.attn.qkv.bias", depth) is not None,
        "proj_bias": any_layer(shapes, "blocks.{}.attn.proj.bias", depth) is not None,
        "qk_norm": q_norm is not None,
        "layer_scale": 1e-5 if scaled else None,
        **_stem(shapes),
    }
    if q_norm:
        decided["heads"] = inner // sized(shapes, q_norm, 1)[0]
    decided_pool, default_pool = _pool(shapes, decided)
    rows = sized(shapes, "pos_embed", 3)[1] if "pos_embed" in shapes else None
    meta = registers == "register_tokens"
    return Inferred(
        decided=decided | decided_pool,
        defaults={
            **default_pool,
            "norm_eps": 1e-6,
            "gelu": "erf",
        },
        constants={
            "resnet_norm_eps": 1e-5,
            "resnet_std_eps": 1e-8,
            "resnet_std_eps_at": "variance",
        },
        attention_width=inner,
        positions=None if rows is None else ("pos_embed", rows),
        prefixes=("cls", "none", "all") if meta else ("all", "none", "cls"),
        dialect=frozenset([*([registers] if registers else []), *(["gamma"] * bool(gamma))]),
        ignored=tuple(name for name in shapes if TRAINING_ONLY.match(name)),
    )


def _pool(shapes: Shapes, decided: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Pooling from attention pooling, fc_norm and absent prefix tokens, and the default."""
    if any(name.startswith("attn_pool.") for name in shapes):
        if decided["class_token"] or decided["registers"]:
            raise WeightsError(
                "attn_pool with class token or registers: timm pools the patches alone, "
                "pool='map' all tokens"
            )
        return {"pool": "map", "norm_at": "tokens"}, {}
    norm_at = "pooled" if any(name.startswith("fc_norm.") for name in shapes) else "tokens"
    if not decided["class_token"]:
        mean = {"pool": "mean"}
        return (
            ({"norm_at": norm_at}, mean)
            if decided["registers"]
            else (
                {**mean, "norm_at": norm_at},
                {},
            )
        )
    return {"norm_at": norm_at}, {"pool": "cls" if norm_at == "tokens" else "mean"}


def _stem(shapes: Shapes) -> dict[str, Any]:
    """ResNet of the hybrid; a root alone lies directly under `backbone`."""
    if not any(name.startswith(f"{BACKBONE}.") for name in shapes):
        return {"stem": "patch"}
    stages = numbered(shapes, rf"{BACKBONE}\.stages\.(\d+)\.")
    layers = tuple(
        numbered(shapes, rf"{BACKBONE}\.stages\.{s}\.blocks\.(\d+)\.") for s in range(stages)
    )
    root = sized(shapes, f"{BACKBONE}.stem.conv.weight" if layers else f"{BACKBONE}.conv.weight", 4)
    return {
        "stem": "resnet",
        "resnet_layers": layers,
        "resnet_width": root[0],
        "channels": root[1],
    }


def rules(config: ViTConfig, dialect: Dialect) -> list[Rule]:
    """Every tensor of the config under timm's names."""
    found = both("stem.proj", "patch_embed.proj")
    if config.position == "learned1d":
        found.append(moved("positions.0.table", "pos_embed", "1 n d -> n d"))
    if config.patch_norm == "after":
        found += both("stem.norm_after", "patch_embed.norm")
    if config.class_token:
        found.append(same("cls_token", "cls_token"))
    if config.registers:
        found.append(same("registers", _registers_name(config, dialect)))
    if config.stem == "resnet":
        found += _resnet_rules(config)
    scales = SCALES["gamma" if "gamma" in dialect else ""]
    for layer in range(config.depth):
        found += _block_rules(f"encoder.blocks.{layer}", f"blocks.{layer}", config, scales)
    if config.norm_at == "pooled":
        found += both("pooled_norm", "fc_norm")
    else:
        found += both("encoder.norm", "norm")
    if config.pool == "map":
        found += _map_rules()
    if config.classes:
        found += both("head", "head")
    return found


def _registers_name(config: ViTConfig, dialect: Dialect) -> str:
    """Name in the file: Meta's, whose class token alone has a position, or timm's own.

    A file of timm's names with positions as in Meta's is read, but never written.
    """
    for name in ("register_tokens", "reg_token"):
        if name in dialect:
            return name
    if config.class_token and config.position_prefix == "cls":
        raise WeightsError(
            f"format 'timm' cannot express registers={config.registers} with "
            f"position_prefix='cls'; valid: 'all' or 'none'"
        )
    return "reg_token"


def _block_rules(ours: str, theirs: str, config: ViTConfig, scales: tuple[str, str]) -> list[Rule]:
    found = [
        *both(f"{ours}.norm1", f"{theirs}.norm1"),
        *both(f"{ours}.attention.qkv", f"{theirs}.attn.qkv", bias=config.qkv_bias),
        *both(f"{ours}.attention.proj", f"{theirs}.attn.proj", bias=config.proj_bias),
        *both(f"{ours}.norm2", f"{theirs}.norm2"),
        *both(f"{ours}.mlp.fc1", f"{theirs}.mlp.fc1"),
        *both(f"{ours}.mlp.fc2", f"{theirs}.mlp.fc2"),
    ]
    if config.qk_norm:
        found += both(f"{ours}.attention.q_norm", f"{theirs}.attn.q_norm")
        found += both(f"{ours}.attention.k_norm", f"{theirs}.attn.k_norm")
    if config.layer_scale is not None:
        found.append(same(f"{ours}.scale1.gamma", f"{theirs}.{scales[0]}"))
        found.append(same(f"{ours}.scale2.gamma", f"{theirs}.{scales[1]}"))
    return found


def _map_rules() -> list[Rule]:
    """timm's AttentionPoolLatent; its keys and values are one matrix."""
    ours = ("pool.attention.k", "pool.attention.v")
    two = (("two", 2),)
    weights, biases = (tuple(f"{name}.{kind}" for name in ours) for kind in ("weight", "bias"))
    return [
        same("pool.probe", "attn_pool.latent"),
        *both("pool.attention.q", "attn_pool.q"),
        Rule(weights, ("attn_pool.kv.weight",), "(two e) d -> two e d", two),
        Rule(biases, ("attn_pool.kv.bias",), "(two e) -> two e", two),
        *both("pool.attention.out", "attn_pool.proj"),
        *both("pool.norm", "attn_pool.norm"),
        *both("pool.mlp.fc1", "attn_pool.mlp.fc1"),
        *both("pool.mlp.fc2", "attn_pool.mlp.fc2"),
    ]


def _resnet_rules(config: ViTConfig) -> list[Rule]:
    root = f"{BACKBONE}.stem" if config.resnet_layers else BACKBONE
    found = _conv_and_norm("stem.resnet.root", ("conv", "norm"), root, ("conv", "norm"))
    for stage, units in enumerate(config.resnet_layers):
        for unit in range(units):
            ours = f"stem.resnet.stages.{stage}.{unit}"
            theirs = f"{BACKBONE}.stages.{stage}.blocks.{unit}"
            for number in "123":
                names = (f"conv{number}", f"norm{number}")
                found += _conv_and_norm(ours, names, theirs, names)
            if unit == 0:
                down = (f"{theirs}.downsample", ("conv", "norm"))
                found += _conv_and_norm(ours, ("conv_proj", "norm_proj"), *down)
    return found


def _conv_and_norm(
    ours: str, our_parts: tuple[str, str], theirs: str, their_parts: tuple[str, str]
) -> list[Rule]:
    return [
        same(f"{ours}.{our_parts[0]}.weight", f"{theirs}.{their_parts[0]}.weight"),
        *both(f"{ours}.{our_parts[1]}", f"{theirs}.{their_parts[1]}"),
    ]


def check(config: ViTConfig) -> None:
    """Raise for anything that timm's VisionTransformer has no arguments for."""
    require_plain("timm", config, stems=("patch", "resnet"))
    # timm's proj_bias=False also takes the biases of the MLP.
    require("timm", config, proj=(True,), proj_bias=(True,))
    require("timm", config, patch_norm=("none", "after"), head=("linear",))
    require_even_heads("timm", config)
    if config.stem == "resnet":
        require("timm", config, patch_norm=("none",))
        require("timm", config, resnet_std_eps_at=("variance",))
    if config.pool == "map" and config.prefix:
        raise WeightsError("format 'timm' cannot express pool='map' over prefix tokens")


LAYOUT = Layout(name="timm", recognise=recognise, infer=infer, rules=rules, check=check)
