"""OpenCLIP's image tower and that of OpenAI's CLIP, alone or beside the text tower."""

import re
from collections.abc import Collection
from typing import Any

from vitlab.models.config import ViTConfig
from vitlab.weights.formats.rules import (
    Dialect,
    Inferred,
    Layout,
    Rule,
    StoredShapes,
    both,
    moved,
    require_even_heads,
    require_plain,
    same,
    square_or_pair,
)

PREFIX = "visual."
LAYER = "transformer.resblocks.{}"
OPENAI = ("input_resolution", "context_length", "vocab_size")
"""Numbers beside the tensors of OpenAI's own files, whose GELU is the quick one."""


def recognise(names: Collection[str]) -> bool:
    return any(re.match(r"(visual\.)?conv1\.weight$", name) for name in names) and any(
        re.match(r"(visual\.)?transformer\.resblocks\.\d+\.", name) for name in names
    )


def infer(shapes: StoredShapes, hints: dict[str, Any]) -> Inferred:
    """Config except the number of heads, the GELU and the pooling."""
    prefix = PREFIX if any(name.startswith(PREFIX) for name in shapes) else ""
    layer = prefix + LAYER
    depth = shapes.numbered(re.escape(layer).replace(r"\{\}", r"(\d+)") + r"\.")
    width, channels, height, patch_width = shapes.sized(f"{prefix}conv1.weight", 4)
    scaled = shapes.any_layer(f"{layer}.ls_1.gamma", depth)
    table = f"{prefix}positional_embedding"
    projected = f"{prefix}proj" in shapes
    decided: dict[str, Any] = {
        "width": width,
        "depth": depth,
        "mlp_width": shapes.layer(f"{layer}.mlp.c_fc.weight", depth, 2)[0],
        "patch_size": square_or_pair(height, patch_width),
        "patch_bias": False,
        "channels": channels,
        "classes": 0,
        "class_token": True,
        "embed_norm": any(name.startswith(f"{prefix}ln_pre.") for name in shapes),
        "layer_scale": 1e-5 if scaled else None,
        "head": "projection" if projected else "linear",
        "representation_size": shapes.sized(f"{prefix}proj", 2)[1] if projected else None,
        "norm_eps": 1e-5,
    }
    openai = any(name in shapes for name in OPENAI)
    return Inferred(
        decided=decided | ({"gelu": "quick"} if openai else {}),
        defaults={"pool": "cls"} if openai else {"pool": "cls", "gelu": "erf"},
        attention_width=shapes.layer(f"{layer}.attn.in_proj_weight", depth, 2)[0] // 3,
        positions=(table, shapes.sized(table, 2)[0]),
        class_token_name=f"{prefix}class_embedding",
        dialect=frozenset([PREFIX] if prefix else []),
        ignored=tuple(n for n in shapes if not n.startswith(PREFIX)) if prefix else (),
    )


def rules(config: ViTConfig, dialect: Dialect) -> list[Rule]:
    """Every tensor of the config; `visual.` comes before the names of a whole CLIP."""
    prefix = PREFIX if PREFIX in dialect else ""
    found = [
        same("stem.proj.weight", f"{prefix}conv1.weight"),
        moved("cls_token", f"{prefix}class_embedding", "d -> 1 1 d"),
        same("positions.0.table", f"{prefix}positional_embedding"),
        *both("encoder.norm", f"{prefix}ln_post"),
    ]
    if config.embed_norm:
        found += both("embed_norm", f"{prefix}ln_pre")
    for layer in range(config.depth):
        found += _layer_rules(f"encoder.blocks.{layer}", prefix + LAYER.format(layer), config)
    if config.head == "projection":
        found.append(moved("pre_logits.weight", f"{prefix}proj", "d e -> e d"))
    return found


def _layer_rules(ours: str, theirs: str, config: ViTConfig) -> list[Rule]:
    found = [
        *both(f"{ours}.norm1", f"{theirs}.ln_1"),
        same(f"{ours}.attention.qkv.weight", f"{theirs}.attn.in_proj_weight"),
        same(f"{ours}.attention.qkv.bias", f"{theirs}.attn.in_proj_bias"),
        *both(f"{ours}.attention.proj", f"{theirs}.attn.out_proj"),
        *both(f"{ours}.norm2", f"{theirs}.ln_2"),
        *both(f"{ours}.mlp.fc1", f"{theirs}.mlp.c_fc"),
        *both(f"{ours}.mlp.fc2", f"{theirs}.mlp.c_proj"),
    ]
    if config.layer_scale is not None:
        found.append(same(f"{ours}.scale1.gamma", f"{theirs}.ls_1.gamma"))
        found.append(same(f"{ours}.scale2.gamma", f"{theirs}.ls_2.gamma"))
    return found


def check(config: ViTConfig) -> None:
    """Raise for anything that OpenCLIP's VisionTransformer has no arguments for."""
    require_plain(
        LAYOUT.name,
        config,
        class_token=(True,),
        position_prefix=("cls", "all"),
        pool=("cls", "mean"),
        classes=(0,),
        embed_norm=None,
        patch_bias=(False,),
        layer_scale=None,
        head=("projection",),
        norm_eps=(1e-5,),
        gelu=("erf", "quick"),
        qkv_bias=(True,),
    )
    require_even_heads(LAYOUT.name, config)


LAYOUT = Layout(name="open-clip", recognise=recognise, infer=infer, rules=rules, check=check)
