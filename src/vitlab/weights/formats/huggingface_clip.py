"""Hugging Face transformers' CLIP and SigLIP: the vision tower, alone or beside its text tower.

The classifiers of both average the patches and leave the usual pooling unused; that of CLIP also
leaves out the last norm.
"""

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
    StoredShapes,
    both,
    moved,
    require_even_heads,
    require_plain,
    same,
    square_or_pair,
)

LAYER = "encoder.layers.{}"
TOWER = re.compile(r"(vision_model\.)?encoder\.layers\.\d+\.(self_attn|layer_norm1|mlp)\.")
OTHERS = re.compile(r"text_model\.|text_projection\.|logit_(scale|bias)$|.*position_ids$")
"""Tensors of the text tower, of the contrastive loss, and numbers of positions."""
PREFIX = "vision_model."


def recognise(names: Collection[str]) -> bool:
    return any(TOWER.match(name) for name in names)


def infer(shapes: StoredShapes, hints: dict[str, Any]) -> Inferred:
    """Config except the number of heads, the epsilon and the GELU, which config.json holds."""
    prefix = PREFIX if any(name.startswith(PREFIX) for name in shapes) else ""
    layer = prefix + LAYER
    depth = shapes.numbered(re.escape(layer).replace(r"\{\}", r"(\d+)") + r"\.")
    patches = f"{prefix}embeddings.patch_embedding"
    if len(shapes.first(f"{patches}.weight")) == 2:
        raise WeightsError(
            "a SigLIP2 for images of any size (naflex): not supported; those of a fixed size load"
        )
    width, channels, height, patch_width = shapes.sized(f"{patches}.weight", 4)
    clip = f"{prefix}embeddings.class_embedding" in shapes
    table = f"{prefix}embeddings.position_embedding.weight"
    decided: dict[str, Any] = {
        "width": width,
        "depth": depth,
        "mlp_width": shapes.layer(f"{layer}.mlp.fc1.weight", depth, 2)[0],
        "patch_size": square_or_pair(height, patch_width),
        "patch_bias": f"{patches}.bias" in shapes,
        "channels": channels,
        "classes": shapes.classes("classifier.weight", "classifier.bias", 0),
        "class_token": clip,
        "embed_norm": any(name.startswith(f"{prefix}pre_layrnorm.") for name in shapes),
        **_head(shapes, prefix, clip=clip),
    }
    ignored = [name for name in shapes if OTHERS.match(name)]
    if decided["classes"]:
        unused = ("post_layernorm.",) if clip else ("head.",)
        ignored += [n for n in shapes if n.startswith(tuple(prefix + part for part in unused))]
    return Inferred(
        decided=decided,
        defaults={"norm_eps": 1e-5 if clip else 1e-6, "gelu": "quick" if clip else "tanh"},
        attention_width=shapes.layer(f"{layer}.self_attn.q_proj.weight", depth, 2)[0],
        positions=(table, shapes.sized(table, 2)[0]),
        class_token_name=f"{prefix}embeddings.class_embedding",
        dialect=frozenset([PREFIX] if prefix else []),
        ignored=tuple(ignored),
    )


def _head(shapes: StoredShapes, prefix: str, *, clip: bool) -> dict[str, Any]:
    """Pooling and head: a classifier of the mean, a projection, or the pooled tokens."""
    plain = {"head": "linear", "representation_size": None, "norm_at": "tokens"}
    if any(name.startswith("classifier.") for name in shapes):
        return {**plain, "pool": "mean", "norm_at": "none" if clip else "tokens"}
    if not clip:
        return {**plain, "pool": "map"}
    if "visual_projection.weight" not in shapes:
        return {**plain, "pool": "cls"}
    size = shapes.sized("visual_projection.weight", 2)[0]
    return {**plain, "pool": "cls", "head": "projection", "representation_size": size}


def rules(config: ViTConfig, dialect: Dialect) -> list[Rule]:
    """Every tensor of the config; a head or a dialect puts the tower under `vision_model`."""
    named = PREFIX in dialect or config.classes or config.head == "projection"
    prefix = PREFIX if named else ""
    embeddings = f"{prefix}embeddings"
    found = [
        same("positions.0.table", f"{embeddings}.position_embedding.weight"),
        *both("stem.proj", f"{embeddings}.patch_embedding", bias=config.patch_bias),
    ]
    if config.class_token:
        found.append(moved("cls_token", f"{embeddings}.class_embedding", "d -> 1 1 d"))
    if config.embed_norm:
        found += both("embed_norm", f"{prefix}pre_layrnorm")
    for layer in range(config.depth):
        found += _layer_rules(f"encoder.blocks.{layer}", prefix + LAYER.format(layer))
    if config.norm_at == "tokens":
        found += both("encoder.norm", f"{prefix}post_layernorm")
    if config.pool == "map":
        found += _map_rules(f"{prefix}head")
    if config.head == "projection":
        found.append(same("pre_logits.weight", "visual_projection.weight"))
    if config.classes:
        found += both("head", "classifier")
    return found


def _layer_rules(ours: str, theirs: str) -> list[Rule]:
    weights, biases = (
        tuple(f"{theirs}.self_attn.{part}_proj.{kind}" for part in "qkv")
        for kind in ("weight", "bias")
    )
    three = (("three", 3),)
    return [
        Rule((f"{ours}.attention.qkv.weight",), weights, "three e d -> (three e) d", three),
        Rule((f"{ours}.attention.qkv.bias",), biases, "three e -> (three e)", three),
        *both(f"{ours}.attention.proj", f"{theirs}.self_attn.out_proj"),
        *both(f"{ours}.norm1", f"{theirs}.layer_norm1"),
        *both(f"{ours}.norm2", f"{theirs}.layer_norm2"),
        *both(f"{ours}.mlp.fc1", f"{theirs}.mlp.fc1"),
        *both(f"{ours}.mlp.fc2", f"{theirs}.mlp.fc2"),
    ]


def _map_rules(theirs: str) -> list[Rule]:
    """SigLIP's head; its queries, keys and values are one matrix."""
    parts, three = [f"pool.attention.{part}" for part in "qkv"], (("three", 3),)
    weights, biases = (tuple(f"{part}.{kind}" for part in parts) for kind in ("weight", "bias"))
    attention = f"{theirs}.attention"
    return [
        same("pool.probe", f"{theirs}.probe"),
        Rule(weights, (f"{attention}.in_proj_weight",), "(three e) d -> three e d", three),
        Rule(biases, (f"{attention}.in_proj_bias",), "(three e) -> three e", three),
        *both("pool.attention.out", f"{attention}.out_proj"),
        *both("pool.norm", f"{theirs}.layernorm"),
        *both("pool.mlp.fc1", f"{theirs}.mlp.fc1"),
        *both("pool.mlp.fc2", f"{theirs}.mlp.fc2"),
    ]


def check(config: ViTConfig) -> None:
    """Raise for anything that transformers' CLIP and SigLIP have no keys for."""
    name, clip = LAYOUT.name, config.class_token
    if config.classes:
        raise WeightsError(
            f"format {name!r} does not write classes={config.classes}: its classifiers carry a "
            f"pooling that the model lacks; valid: classes=0"
        )
    require_plain(
        name,
        config,
        embed_norm=(clip,),
        patch_bias=(not clip,),
        position_prefix=("cls", "all") if clip else None,
        pool=("cls",) if clip else ("map",),
        head=("linear", "projection") if clip else ("linear",),
        qkv_bias=(True,),
    )
    require_even_heads(name, config)


LAYOUT = Layout(name="huggingface-clip", recognise=recognise, infer=infer, rules=rules, check=check)
