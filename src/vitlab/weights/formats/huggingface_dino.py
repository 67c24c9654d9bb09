"""Hugging Face transformers' DINOv2, with and without registers, and DINOv3.

DINOv2 has two generations of names, as transformers' ViT; DINOv3 has rotary positions and no table.
"""

import re
from collections.abc import Collection
from typing import Any

import torch

from vitlab.errors import WeightsError
from vitlab.models.config import ViTConfig
from vitlab.weights.formats.rules import (
    Dialect,
    Inferred,
    Layout,
    Rule,
    StoredShapes,
    both,
    fixed,
    moved,
    require,
    require_even_heads,
    require_plain,
    same,
    square_or_pair,
)

PREFIXES = ("dinov2_with_registers.", "dinov2.")
LAYER = re.compile(r"(dinov2\w*\.)?(encoder\.layer|model\.layer|layer)\.(\d+)\.layer_scale1\.")
LAYERS = ("encoder.layer", "model.layer", "layer")
"""Names of the blocks: DINOv2, and DINOv3 in memory since release 5 and as published."""
EMPTY = "empty registers"
"""Tag of a file that stores registers and has none."""
OLDER = {
    "q_proj": "attention.attention.query",
    "k_proj": "attention.attention.key",
    "v_proj": "attention.attention.value",
    "o_proj": "attention.output.dense",
}
"""Published names of DINOv2's attention."""


def recognise(names: Collection[str]) -> bool:
    return any(LAYER.match(name) for name in names)


def infer(shapes: StoredShapes, hints: dict[str, Any]) -> Inferred:
    """Config except the number of heads, the epsilon and the GELU, which config.json holds."""
    prefix = next((p for p in PREFIXES if any(n.startswith(p) for n in shapes)), "")
    blocks = next(b for b in LAYERS if any(n.startswith(f"{prefix}{b}.") for n in shapes))
    classes = shapes.classes("classifier.weight", "classifier.bias", 0)
    layer = f"{prefix}{blocks}.{{}}"
    depth = shapes.numbered(re.escape(f"{prefix}{blocks}.") + r"(\d+)\.")
    registers = f"{prefix}embeddings.register_tokens"
    count = shapes.sized(registers, 3)[1] if registers in shapes else 0
    dialect = _dialect(shapes, layer, depth) | {blocks, *([prefix] if prefix else [])}
    if registers in shapes and not count:
        dialect.add(EMPTY)
    third = blocks != "encoder.layer"
    projection = _projection(third)
    width, channels, height, patch_width = shapes.sized(f"{prefix}{projection}.weight", 4)
    names = _attention(layer, dialect)
    biases = [shapes.any_layer(f"{names[part]}.bias", depth) for part in ("q_proj", "k_proj")]
    decided: dict[str, Any] = {
        "width": width,
        "depth": depth,
        **_mlp(shapes, layer, depth, dialect),
        "patch_size": square_or_pair(height, patch_width),
        "channels": channels,
        "classes": classes,
        "class_token": True,
        "registers": count,
        "pool": "cls_mean" if classes else "cls",
        "head": "linear",
        "layer_scale": 1.0,
        "qkv_bias": biases[0] is not None,
        "key_bias": biases[1] is not None or biases[0] is None,
        "proj_bias": shapes.any_layer(f"{names['o_proj']}.bias", depth) is not None,
        **({"position": "rope", "rope_form": "dinov3"} if third else {}),
    }
    gated = decided["mlp_activation"] == "swiglu"
    table = f"{prefix}embeddings.position_embeddings"
    return Inferred(
        decided=decided,
        defaults={"norm_eps": 1e-5 if third else 1e-6, **({} if gated else {"gelu": "erf"})},
        constants={"rope_theta": 100.0} if third else {},
        attention_width=shapes.layer(f"{names['q_proj']}.weight", depth, 2)[0],
        positions=None if third else shapes.table(table),
        class_token_name=f"{prefix}embeddings.cls_token",
        dialect=frozenset(dialect),
        ignored=tuple(n for n in shapes if n == f"{prefix}embeddings.mask_token"),
    )


def _dialect(shapes: StoredShapes, layer: str, depth: int) -> set[str]:
    """Tags of the published names of DINOv2."""
    older = shapes.any_layer(f"{layer}.{OLDER['q_proj']}.weight", depth)
    packed = shapes.any_layer(f"{layer}.mlp.weights_in.weight", depth)
    return {*(["older"] if older else []), *(["packed"] if packed else [])}


def _projection(third: bool) -> str:
    return "embeddings.patch_embeddings" + ("" if third else ".projection")


def _attention(layer: str, dialect: Collection[str]) -> dict[str, str]:
    """Name of each matrix of attention."""
    if "older" in dialect:
        return {part: f"{layer}.{name}" for part, name in OLDER.items()}
    return {part: f"{layer}.attention.{part}" for part in OLDER}


def _mlp(shapes: StoredShapes, layer: str, depth: int, dialect: Collection[str]) -> dict[str, Any]:
    """Width, kind and biases of the MLP, by the names of its matrices."""
    if "packed" in dialect:
        rows = shapes.layer(f"{layer}.mlp.weights_in.weight", depth, 2)[0]
        return {"mlp_width": rows // 2, "mlp_activation": "swiglu", "mlp_bias": True}
    plain = shapes.any_layer(f"{layer}.mlp.fc1.weight", depth) is not None
    first = "fc1" if plain else "up_proj"
    gated = shapes.any_layer(f"{layer}.mlp.gate_proj.weight", depth) is not None
    return {
        "mlp_width": shapes.layer(f"{layer}.mlp.{first}.weight", depth, 2)[0],
        "mlp_activation": "swiglu" if gated else "gelu",
        "mlp_bias": shapes.any_layer(f"{layer}.mlp.{first}.bias", depth) is not None,
    }


def rules(config: ViTConfig, dialect: Dialect) -> list[Rule]:
    """Every tensor of the config, in the published names unless the dialect is newer."""
    third = config.rotary
    if not dialect:
        dialect = frozenset({"layer"} if third else {"encoder.layer", "older", "packed"})
    usual = PREFIXES[0 if config.registers else 1] if config.classes else ""
    prefix = next((p for p in PREFIXES if p in dialect), usual)
    blocks = next(b for b in LAYERS if b in dialect)
    embeddings = f"{prefix}embeddings"
    found = [
        same("cls_token", f"{embeddings}.cls_token"),
        *both("stem.proj", prefix + _projection(third)),
        *both("encoder.norm", prefix + ("norm" if third else "layernorm")),
    ]
    if config.registers:
        found.append(same("registers", f"{embeddings}.register_tokens"))
    elif EMPTY in dialect:
        empty = torch.zeros(1, 0, config.width)
        found.append(fixed(f"{embeddings}.register_tokens", lambda: empty))
    if not third:
        found.append(
            moved("positions.0.table", f"{embeddings}.position_embeddings", "1 n d -> n d")
        )
    for number in range(config.depth):
        ours, theirs = f"encoder.blocks.{number}", f"{prefix}{blocks}.{number}"
        found += _attention_rules(ours, _attention(theirs, dialect), config)
        found += _mlp_rules(f"{ours}.mlp", f"{theirs}.mlp", config, dialect)
        for half in "12":
            found += both(f"{ours}.norm{half}", f"{theirs}.norm{half}")
            found.append(same(f"{ours}.scale{half}.gamma", f"{theirs}.layer_scale{half}.lambda1"))
    return [*found, *both("head", "classifier")] if config.classes else found


def _attention_rules(ours: str, names: dict[str, str], config: ViTConfig) -> list[Rule]:
    three = ("q_proj", "k_proj", "v_proj")
    weights = tuple(f"{names[part]}.weight" for part in three)
    biases = tuple(f"{names[part]}.bias" for part in three)
    qkv, axes = f"{ours}.attention.qkv", (("three", 3),)
    found = [
        Rule((f"{qkv}.weight",), weights, "three e d -> (three e) d", axes),
        *both(f"{ours}.attention.proj", names["o_proj"], bias=config.proj_bias),
    ]
    if not config.key_bias:
        heads = (("a", config.heads),)
        pair = (biases[0], biases[2])
        found.append(Rule((f"{ours}.attention.qv_bias",), pair, "two (a k) -> two a k", heads))
    elif config.qkv_bias:
        found.append(Rule((f"{qkv}.bias",), biases, "three e -> (three e)", axes))
    return found


def _mlp_rules(ours: str, theirs: str, config: ViTConfig, dialect: Dialect) -> list[Rule]:
    bias, gated = config.mlp_bias, config.mlp_activation == "swiglu"
    if gated and "packed" in dialect:
        two = (("two", 2),)
        weights, biases = (
            tuple(f"{ours}.{part}.{kind}" for part in ("gate", "fc1"))
            for kind in ("weight", "bias")
        )
        return [
            Rule(weights, (f"{theirs}.weights_in.weight",), "(two f) d -> two f d", two),
            Rule(biases, (f"{theirs}.weights_in.bias",), "(two f) -> two f", two),
            *both(f"{ours}.fc2", f"{theirs}.weights_out"),
        ]
    if not gated and not config.rotary:
        return [*both(f"{ours}.fc1", f"{theirs}.fc1"), *both(f"{ours}.fc2", f"{theirs}.fc2")]
    return [
        *(both(f"{ours}.gate", f"{theirs}.gate_proj", bias=bias) if gated else []),
        *both(f"{ours}.fc1", f"{theirs}.up_proj", bias=bias),
        *both(f"{ours}.fc2", f"{theirs}.down_proj", bias=bias),
    ]


def check(config: ViTConfig) -> None:
    """Raise for anything that transformers' DINOv2 and DINOv3 have no keys for."""
    name, third = LAYOUT.name, config.rotary
    require_plain(
        name,
        config,
        position=("rope",) if third else ("learned1d",),
        class_token=(True,),
        pool=("cls_mean",) if config.classes and not third else ("cls",),
        classes=(0,) if third else None,
        head=("linear",),
        registers=None,
        position_prefix=None if third else ("cls",),
        mlp_activation=("gelu", "swiglu"),
        **(dict.fromkeys(("key_bias", "proj_bias", "mlp_bias")) if third else {}),
        layer_scale=None,
    )
    if third:
        require(name, config, rope_form=("dinov3",), rope_periods=(None,))
    require_even_heads(name, config)
    if config.layer_scale is None:
        raise WeightsError(f"format {name!r} cannot express layer_scale=None; valid: a number")


LAYOUT = Layout(name="huggingface-dino", recognise=recognise, infer=infer, rules=rules, check=check)
