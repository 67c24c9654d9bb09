"""OpenCLIP's image tower, that of OpenAI's CLIP and Meta's Perception Encoders.

It is alone or beside the text tower. Perception Encoders have rotary positions besides the table,
and most of them attention pooling.
"""

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
    split,
    square_or_pair,
)
from vitlab.weights.formats.timm import ROTARY

PREFIX = "visual."
LAYER = "transformer.resblocks.{}"
OPENAI = ("input_resolution", "context_length", "vocab_size")
"""Numbers beside the tensors of OpenAI's own files, whose GELU is the quick one."""
PE = {**ROTARY["pe"], "pool_heads": 8}
"""Fields of Perception Encoders that have no tensors."""


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
    mlp_width = shapes.layer(f"{layer}.mlp.c_fc.weight", depth, 2)[0]
    normed = any(name.startswith(f"{prefix}ln_pre.") for name in shapes)
    last = any(name.startswith(f"{prefix}ln_post.") for name in shapes)
    probe = f"{prefix}attn_pool.probe" in shapes
    decided: dict[str, Any] = {
        "width": width,
        "depth": depth,
        "mlp_width": mlp_width,
        "patch_size": square_or_pair(height, patch_width),
        "patch_bias": False,
        "channels": channels,
        "classes": 0,
        "class_token": f"{prefix}class_embedding" in shapes,
        "embed_norm": normed,
        "layer_scale": 1e-5 if scaled else None,
        **_head(shapes, prefix),
    }
    openai = any(name in shapes for name in OPENAI)
    decided |= {"gelu": "quick"} if openai else {}
    defaults: dict[str, Any] = {} if openai else {"gelu": "erf"}
    if probe:
        own = shapes.sized(f"{prefix}attn_pool.mlp.c_fc.weight", 2)[0]
        decided |= {"pool": "map", "pool_mlp_width": None if own == mlp_width else own}
    if probe or not last:  # a Perception Encoder; those without pooling have no last norm
        decided |= {"norm_at": "tokens" if last else "none"}
        defaults |= PE if probe else {**ROTARY["pe"], "pool": "mean"}
    else:  # OpenCLIP's only tower without a first norm is that of CLIPA
        defaults |= {"pool": "cls"} if normed else {"pool": "mean", "norm_at": "pooled"}
    constants: dict[str, Any] = {"norm_eps": 1e-5}
    if "norm_at" not in decided and "norm_at" not in defaults:
        constants["norm_at"] = "tokens"  # the same as `pooled`, with a class token
    return Inferred(
        decided=decided,
        defaults=defaults,
        constants=constants,
        attention_width=shapes.layer(f"{layer}.attn.in_proj_weight", depth, 2)[0] // 3,
        positions=(table, shapes.sized(table, 2)[0]),
        class_token_name=f"{prefix}class_embedding",
        dialect=frozenset([PREFIX] if prefix else []),
        ignored=tuple(n for n in shapes if not n.startswith(PREFIX)) if prefix else (),
    )


def _head(shapes: StoredShapes, prefix: str) -> dict[str, Any]:
    projection = f"{prefix}proj"
    if projection not in shapes:
        return {"head": "linear", "representation_size": None}
    return {"head": "projection", "representation_size": shapes.sized(projection, 2)[1]}


def rules(config: ViTConfig, dialect: Dialect) -> list[Rule]:
    """Every tensor of the config; `visual.` comes before the names of a whole CLIP."""
    prefix = PREFIX if PREFIX in dialect else ""
    found = [
        same("stem.proj.weight", f"{prefix}conv1.weight"),
        same("positions.0.table", f"{prefix}positional_embedding"),
    ]
    if config.class_token:
        found.append(moved("cls_token", f"{prefix}class_embedding", "d -> 1 1 d"))
    if config.norm_at != "none":
        pooled = config.norm_at == "pooled"
        found += both("pooled_norm" if pooled else "encoder.norm", f"{prefix}ln_post")
    if config.embed_norm:
        found += both("embed_norm", f"{prefix}ln_pre")
    for layer in range(config.depth):
        found += _layer_rules(f"encoder.blocks.{layer}", prefix + LAYER.format(layer), config)
    if config.pool == "map":
        found += _pool_rules(f"{prefix}attn_pool")
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


def _pool_rules(theirs: str) -> list[Rule]:
    """Attention pooling of a Perception Encoder."""
    parts = [f"pool.attention.{part}" for part in "qkv"]
    patterns = {"weight": "(three e) d -> three e d", "bias": "(three e) -> three e"}
    return [
        same("pool.probe", f"{theirs}.probe"),
        *(
            split(
                [f"{part}.{kind}" for part in parts],
                f"{theirs}.attn.in_proj_{kind}",
                pattern,
                three=3,
            )
            for kind, pattern in patterns.items()
        ),
        *both("pool.attention.out", f"{theirs}.attn.out_proj"),
        *both("pool.norm", f"{theirs}.layernorm"),
        *both("pool.mlp.fc1", f"{theirs}.mlp.c_fc"),
        *both("pool.mlp.fc2", f"{theirs}.mlp.c_proj"),
    ]


def check(config: ViTConfig) -> None:
    """Raise for anything that OpenCLIP's and Meta's towers have no arguments for."""
    pe = config.rope
    require_plain(
        LAYOUT.name,
        config,
        class_token=None if pe else (True,),
        position_prefix=("cls", "all") if config.class_token else None,
        pool=("map", "cls", "mean") if pe else ("cls", "mean"),
        classes=(0,),
        embed_norm=None,
        patch_bias=(False,),
        layer_scale=None,
        head=("projection", "linear") if pe else ("projection",),
        norm_at=("tokens", "none") if pe else ("tokens", "pooled"),
        qkv_bias=(True,),
        **({"rope": (True,), "rope_form": ("pe",)} if pe else {}),
        **(dict.fromkeys(("pool_heads", "pool_mlp_width")) if config.pool == "map" else {}),
    )
    require_even_heads(LAYOUT.name, config)


LAYOUT = Layout(name="open-clip", recognise=recognise, infer=infer, rules=rules, check=check)
