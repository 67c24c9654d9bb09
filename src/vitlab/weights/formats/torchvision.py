"""torchvision's vision_transformer: class token always, heads in a sequence of named layers."""

from collections.abc import Collection
from typing import Any

from vitlab.models.config import ViTConfig
from vitlab.weights.formats.rules import (
    CLASS_TOKEN,
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

LAYER = "encoder.layers.encoder_layer_{}"
MLP = {"": ("mlp.0", "mlp.3"), "linear": ("mlp.linear_1", "mlp.linear_2")}
"""Names since release 0.12, and before: the published files still have the older ones."""


def recognise(names: Collection[str]) -> bool:
    return any(name.startswith("encoder.layers.encoder_layer_") for name in names)


def infer(shapes: StoredShapes, hints: dict[str, Any]) -> Inferred:
    """Config except the number of heads and the epsilon."""
    depth = shapes.numbered(r"encoder\.layers\.encoder_layer_(\d+)\.")
    linear = any(".mlp.linear_1." in name for name in shapes)
    fc1 = MLP["linear" if linear else ""][0]
    width, channels, height, patch_width = shapes.sized("conv_proj.weight", 4)
    decided: dict[str, Any] = {
        "width": width,
        "depth": depth,
        "mlp_width": shapes.layer(f"{LAYER}.{fc1}.weight", depth, 2)[0],
        "patch_size": square_or_pair(height, patch_width),
        "channels": channels,
        "classes": shapes.classes("heads.head.weight", "heads.head.bias", 0),
        "class_token": True,
        "pool": "cls",
        "gelu": "erf",
        "head": "linear",
        "representation_size": None,
    }
    if any(name.startswith("heads.pre_logits.") for name in shapes):
        names = ("heads.pre_logits.weight", "heads.pre_logits.bias")
        decided |= {"head": "mlp", "representation_size": shapes.classes(*names, 0)}
    in_proj = shapes.layer(f"{LAYER}.self_attention.in_proj_weight", depth, 2)
    name = "encoder.pos_embedding"
    return Inferred(
        decided=decided,
        defaults={"norm_eps": 1e-6},
        attention_width=in_proj[0] // 3,
        positions=shapes.table(name),
        class_token_name="class_token",
        dialect=frozenset(["linear"] * linear),
    )


def rules(config: ViTConfig, dialect: Dialect) -> list[Rule]:
    """Every tensor of the config under torchvision's names."""
    found = [
        same("cls_token", "class_token"),
        moved("positions.0.table", "encoder.pos_embedding", "1 n d -> n d"),
        *both("stem.proj", "conv_proj"),
        *both("encoder.norm", "encoder.ln"),
    ]
    fc1, fc2 = MLP["linear" if "linear" in dialect else ""]
    for layer in range(config.depth):
        ours, theirs = f"encoder.blocks.{layer}", LAYER.format(layer)
        found += [
            *both(f"{ours}.norm1", f"{theirs}.ln_1"),
            same(f"{ours}.attention.qkv.weight", f"{theirs}.self_attention.in_proj_weight"),
            same(f"{ours}.attention.qkv.bias", f"{theirs}.self_attention.in_proj_bias"),
            *both(f"{ours}.attention.proj", f"{theirs}.self_attention.out_proj"),
            *both(f"{ours}.norm2", f"{theirs}.ln_2"),
            *both(f"{ours}.mlp.fc1", f"{theirs}.{fc1}"),
            *both(f"{ours}.mlp.fc2", f"{theirs}.{fc2}"),
        ]
    if config.head == "mlp":
        found += both("pre_logits", "heads.pre_logits")
    if config.classes:
        found += both("head", "heads.head")
    return found


def check(config: ViTConfig) -> None:
    """Raise for settings that torchvision's VisionTransformer lacks; its GELU is built in."""
    require_plain("torchvision", config, **CLASS_TOKEN, gelu=("erf",), qkv_bias=(True,))
    require_even_heads("torchvision", config)


LAYOUT = Layout(name="torchvision", recognise=recognise, infer=infer, rules=rules, check=check)
