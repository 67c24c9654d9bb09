"""Hugging Face transformers' ViT and its relatives with the same encoder.

They are DeiT, MAE, MSN, I-JEPA, BEiT and Data2Vec, in published names and in those of release 5 in
memory. A classifier puts the encoder under a prefix, such as `vit.`, and has no pooler; the pooler
of a bare model (a dense layer and tanh) is our `mlp` head without classes. That of BEiT averages
the patches before the last norm. I-JEPA has no class token, and its classifier reads the mean of
the patches.
"""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor

from vitlab.errors import WeightsError
from vitlab.models.config import ViTConfig
from vitlab.weights.formats.huggingface_config import family
from vitlab.weights.formats.rules import (
    DROP_HEAD,
    Dialect,
    Inferred,
    Layout,
    Rule,
    StoredShapes,
    both,
    moved,
    require,
    require_plain,
    same,
    square_or_pair,
    stacked,
)
from vitlab.weights.formats.timm_blocks import BIAS, ENTRIES, INDEX, offset_rules, offset_table

PREFIXES = ("vit.", "ijepa.", "deit.", "beit.", "data2vec_vision.")
START = "".join(("(", "|".join(map(re.escape, PREFIXES)), ")?"))
PUBLISHED_LAYER = re.compile(START + r"encoder\.layer\.(\d+)\.(attention|layernorm_before)\.")
NEW_LAYER = re.compile(START + r"layers\.(\d+)\.(attention\.[qkvo]_proj|layernorm_before)\.")
NEW, OUTSIDE, OUTER_NORM = "release-5", "blocks outside", "outer norm"
"""Tags: names of release 5; a prefix of the embeddings that the blocks, or the last norm, lack."""
NOT_USED = re.compile(r".*embeddings\.mask_token$|decoder\.|lm_head\.")
"""Token of masked patches, and the decoders of masked pre-training."""
HEADS = ("cls_classifier", "distillation_classifier")
"""Heads of a distilled DeiT whose outputs are averaged."""


@dataclass(frozen=True)
class Names:
    """Names of the parts of a layer in one generation."""

    layer: str
    qkv: tuple[str, str, str]
    out: str
    fc1: str
    fc2: str
    offsets: str
    """Relative positions of BEiT in a layer."""
    shared: str
    """Those that all layers share."""


PUBLISHED = Names(
    "encoder.layer.{}",
    ("attention.attention.query", "attention.attention.key", "attention.attention.value"),
    "attention.output.dense",
    "intermediate.dense",
    "output.dense",
    "attention.attention.relative_position_bias",
    "encoder.relative_position_bias",
)
RELEASE_5 = Names(
    "layers.{}",
    ("attention.q_proj", "attention.k_proj", "attention.v_proj"),
    "attention.o_proj",
    "mlp.fc1",
    "mlp.fc2",
    "relative_position_bias",
    "shared_position_bias",
)


def recognise(names: Collection[str]) -> bool:
    return any(PUBLISHED_LAYER.match(name) or NEW_LAYER.match(name) for name in names)


def infer(shapes: StoredShapes, hints: dict[str, Any]) -> Inferred:
    """Config except the number of heads, the epsilon and the GELU, which HF's config.json holds."""
    prefix = next((p for p in PREFIXES if any(name.startswith(p) for name in shapes)), "")
    new = any(NEW_LAYER.match(name) for name in shapes)
    names = RELEASE_5 if new else PUBLISHED
    outside = not any(name.startswith(prefix + names.layer.format("")) for name in shapes)
    layer = ("" if outside else prefix) + names.layer
    depth = shapes.numbered(re.escape(layer).replace(r"\{\}", r"(\d+)") + r"\.")
    projection = f"{prefix}embeddings.patch_embeddings.projection.weight"
    width, channels, height, patch_width = shapes.sized(projection, 4)
    biases = [shapes.any_layer(f"{layer}.{part}.bias", depth) for part in names.qkv[:2]]
    decided: dict[str, Any] = {
        "width": width,
        "depth": depth,
        "mlp_width": shapes.layer(f"{layer}.{names.fc1}.weight", depth, 2)[0],
        "patch_size": square_or_pair(height, patch_width),
        "channels": channels,
        "qkv_bias": biases[0] is not None,
        "key_bias": biases[1] is not None or biases[0] is None,
        "layer_scale": 0.1 if shapes.any_layer(f"{layer}.lambda_1", depth) else None,
        **_tokens(shapes, prefix),
    }
    own = shapes.any_layer(f"{layer}.{names.offsets}.{BIAS}", depth)
    shared = f"{prefix}{names.shared}.{BIAS}"
    table = own or (shared if shared in shapes else None)
    positions = shapes.table(f"{prefix}embeddings.position_embeddings")
    if table is not None:
        decided["relative_table"] = "blocks" if own else "shared"
        decided["heads"] = shapes.sized(table, 2)[1]
    if positions is None and (table is not None or not decided["key_bias"]):
        decided["position"] = "none"
    tags = {
        NEW: new,
        OUTSIDE: outside,
        OUTER_NORM: prefix and "layernorm.weight" in shapes,
        "index": any(name.endswith(f".{INDEX}") for name in shapes),
        prefix: prefix,
    }
    unused = decided["classes"] and f"{prefix}pooler.dense."
    return Inferred(
        decided=decided,
        defaults={"norm_eps": 1e-12, "gelu": "erf"},
        attention_width=shapes.layer(f"{layer}.{names.qkv[0]}.weight", depth, 2)[0],
        positions=positions,
        offsets=None if table is None else (table, shapes.sized(table, 2)[0] - ENTRIES),
        prefixes=("all",) if decided["registers"] else ("cls",),
        class_token_name=f"{prefix}embeddings.cls_token",
        dialect=frozenset(tag for tag, found in tags.items() if found),
        ignored=tuple(
            name
            for name in shapes
            if NOT_USED.match(name) or (unused and name.startswith(str(unused)))
        ),
    )


def _tokens(shapes: StoredShapes, prefix: str) -> dict[str, Any]:
    """Tokens before the patches, pooling and head."""
    cls = f"{prefix}embeddings.cls_token" in shapes
    distilled = f"{HEADS[1]}.weight" in shapes
    first = HEADS[0] if distilled else "classifier"
    pooled = f"{prefix}pooler.layernorm.weight" in shapes
    found: dict[str, Any] = {
        "classes": shapes.classes(f"{first}.weight", f"{first}.bias", 0),
        "class_token": cls,
        "registers": int(f"{prefix}embeddings.distillation_token" in shapes),
        "pool": "cls_dist" if distilled else "cls" if cls and not pooled else "mean",
        "norm_at": "pooled" if pooled else "tokens",
        "head": "linear",
        "representation_size": None,
    }
    dense = f"{prefix}pooler.dense"
    if not found["classes"] and any(name.startswith(f"{dense}.") for name in shapes):
        found["head"] = "mlp"
        found["representation_size"] = shapes.classes(f"{dense}.weight", f"{dense}.bias", 0)
    return found


def rules(config: ViTConfig, dialect: Dialect) -> list[Rule]:
    """Every tensor of the config, under the published names unless the dialect is newer."""
    names = RELEASE_5 if NEW in dialect else PUBLISHED
    usual = f"{family(config)}." if config.classes else ""
    prefix = next((p for p in PREFIXES if p in dialect), usual)
    inside = "" if OUTSIDE in dialect else prefix
    embeddings = f"{prefix}embeddings"
    norm = ("" if OUTER_NORM in dialect else prefix) + "layernorm"
    pooled = config.norm_at == "pooled"
    found = [
        *([same("cls_token", f"{embeddings}.cls_token")] if config.class_token else []),
        *both("stem.proj", f"{embeddings}.patch_embeddings.projection"),
        *both(
            "pooled_norm" if pooled else "encoder.norm",
            f"{prefix}pooler.layernorm" if pooled else norm,
        ),
    ]
    if config.position == "learned1d":
        table = f"{embeddings}.position_embeddings"
        found.append(moved("positions.0.table", table, "1 n d -> n d"))
    if config.registers:
        found.append(same("registers", f"{embeddings}.distillation_token"))
    for layer in range(config.depth):
        theirs = inside + names.layer.format(layer)
        found += _layer_rules(f"encoder.blocks.{layer}", theirs, names, config)
        if config.relative_table == "blocks":
            ours = [f"encoder.blocks.{layer}.attention"]
            found += _offset_rules(ours, f"{theirs}.{names.offsets}", config, dialect)
    if config.relative_table == "shared":
        ours = [f"encoder.blocks.{layer}.attention" for layer in range(config.depth)]
        found += _offset_rules(ours, prefix + names.shared, config, dialect)
    if config.head == "mlp":
        found += both("pre_logits", f"{prefix}pooler.dense")
    return [*found, *_head_rules(config)]


def _offset_rules(ours: list[str], theirs: str, config: ViTConfig, dialect: Dialect) -> list[Rule]:
    """A table of BEiT; transformers reads that of a grid that is not square with swapped sides."""
    grid = config.grid
    if grid[0] == grid[1]:
        return offset_rules(ours, theirs, config, dialect)

    def swapped(found: Sequence[Tensor]) -> list[Tensor]:
        height, width = (2 * side - 1 for side in grid)
        body = rearrange(found[0][:-ENTRIES], "(w h) a -> 1 a w h", w=width)
        body = F.interpolate(body, size=(height, width), mode="bilinear")
        table = torch.cat([rearrange(body, "1 a h w -> (h w) a"), found[0][-ENTRIES:]])
        return [*offset_table(table, grid)] * len(ours)

    rule, *index = offset_rules(ours, theirs, config, dialect)
    return [replace(rule, convert=swapped), *index]


def _head_rules(config: ViTConfig) -> list[Rule]:
    """One classifier, or the two of a distilled DeiT."""
    if not config.classes:
        return []
    if config.pool != "cls_dist":
        return both("head", "classifier")
    patterns = {"weight": "two c d -> c two d", "bias": "two c -> c two"}
    return [
        stacked(f"head.{kind}", [f"{name}.{kind}" for name in HEADS], pattern)
        for kind, pattern in patterns.items()
    ]


def _layer_rules(ours: str, theirs: str, names: Names, config: ViTConfig) -> list[Rule]:
    weights, biases = (
        [f"{theirs}.{name}.{kind}" for name in names.qkv] for kind in ("weight", "bias")
    )
    qkv = f"{ours}.attention.qkv"
    found = [stacked(f"{qkv}.weight", weights, "three e d -> (three e) d", three=3)]
    if not config.key_bias:
        split, pair = "two (a k) -> two a k", [biases[0], biases[2]]
        found.append(stacked(f"{ours}.attention.qv_bias", pair, split, a=config.heads))
    elif config.qkv_bias:
        found.append(stacked(f"{qkv}.bias", biases, "three e -> (three e)", three=3))
    if config.layer_scale is not None:
        found += [same(f"{ours}.scale{half}.gamma", f"{theirs}.lambda_{half}") for half in "12"]
    return [
        *found,
        *both(f"{ours}.norm1", f"{theirs}.layernorm_before"),
        *both(f"{ours}.attention.proj", f"{theirs}.{names.out}"),
        *both(f"{ours}.norm2", f"{theirs}.layernorm_after"),
        *both(f"{ours}.mlp.fc1", f"{theirs}.{names.fc1}"),
        *both(f"{ours}.mlp.fc2", f"{theirs}.{names.fc2}"),
    ]


def check(config: ViTConfig) -> None:
    """Raise for anything that transformers' ViT, DeiT, BEiT and I-JEPA have no keys for."""
    kind = family(config)
    beit = {
        "key_bias": (False,),
        "layer_scale": None,
        "relative_table": None,
        "position": ("learned1d", "none"),
        "norm_at": ("pooled",) if config.pool == "mean" else ("tokens",),
        "head": ("linear",),
    }
    pools = {"ijepa": ("mean",), "beit": ("cls", "mean"), "vit": ("cls",)}
    distilled = ("cls", "cls_dist") if config.classes else ("cls",)
    require_plain(
        "huggingface",
        config,
        class_token=None,
        registers=(1,) if kind == "deit" else (0,),
        position_prefix={"deit": ("all",), "ijepa": None}.get(kind, ("cls", "all")),
        pool=pools.get(kind, distilled),
        **(beit if kind == "beit" else {}),
    )
    grid = config.grid
    if config.relative_table != "none" and grid[0] != grid[1]:
        raise WeightsError(
            f"format 'huggingface' cannot express relative_table={config.relative_table!r} with a "
            f"grid of {grid[0]}x{grid[1]} patches; valid: a square"
        )
    if config.heads * config.key_width != config.width:
        require("huggingface", config, head_width=(None, config.width // config.heads))
    if config.head == "mlp" and config.classes:
        raise WeightsError(
            f"format 'huggingface' cannot express head='mlp' with classes={config.classes}; "
            f"valid: head='linear', or classes=0 (a ViTModel with its pooler){DROP_HEAD}"
        )


LAYOUT = Layout(name="huggingface", recognise=recognise, infer=infer, rules=rules, check=check)
