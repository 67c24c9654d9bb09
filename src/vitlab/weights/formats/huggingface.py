"""Hugging Face transformers' ViT and I-JEPA: published names, and those of release 5 in memory.

`ViTForImageClassification` puts the encoder under `vit.` and has no pooler; `ViTModel` has no
prefix, and its pooler (a dense layer and tanh) is our `mlp` head without classes. I-JEPA has no
class token, and its classifier reads the mean of the patches.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from vitlab.errors import WeightsError
from vitlab.models.config import ViTConfig
from vitlab.weights.formats.rules import (
    CLASS_TOKEN,
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
)

PREFIXES = ("vit.", "ijepa.")
PUBLISHED_LAYER = re.compile(
    r"(vit\.|ijepa\.)?encoder\.layer\.(\d+)\.(attention|layernorm_before)\."
)
NEW_LAYER = re.compile(
    r"(vit\.|ijepa\.)?layers\.(\d+)\.(attention\.[qkvo]_proj|layernorm_before)\."
)


@dataclass(frozen=True)
class Names:
    """Names of the parts of a layer in one generation."""

    layer: str
    qkv: tuple[str, str, str]
    out: str
    fc1: str
    fc2: str


PUBLISHED = Names(
    "encoder.layer.{}",
    ("attention.attention.query", "attention.attention.key", "attention.attention.value"),
    "attention.output.dense",
    "intermediate.dense",
    "output.dense",
)
RELEASE_5 = Names(
    "layers.{}",
    ("attention.q_proj", "attention.k_proj", "attention.v_proj"),
    "attention.o_proj",
    "mlp.fc1",
    "mlp.fc2",
)


def recognise(names: Collection[str]) -> bool:
    return any(PUBLISHED_LAYER.match(name) or NEW_LAYER.match(name) for name in names)


def infer(shapes: StoredShapes, hints: dict[str, Any]) -> Inferred:
    """Config except the number of heads, the epsilon and the GELU, which HF's config.json holds."""
    prefix = next((p for p in PREFIXES if any(name.startswith(p) for name in shapes)), "")
    new = any(NEW_LAYER.match(name) for name in shapes)
    names = RELEASE_5 if new else PUBLISHED
    layer = prefix + names.layer
    depth = shapes.numbered(re.escape(layer).replace(r"\{\}", r"(\d+)") + r"\.")
    projection = f"{prefix}embeddings.patch_embeddings.projection.weight"
    width, channels, height, patch_width = shapes.sized(projection, 4)
    positions = f"{prefix}embeddings.position_embeddings"
    class_token = f"{prefix}embeddings.cls_token" in shapes
    classes = shapes.classes("classifier.weight", "classifier.bias", 0)
    pooler = tuple(name for name in shapes if name.startswith(f"{prefix}pooler."))
    mask = tuple(name for name in shapes if name == f"{prefix}embeddings.mask_token")
    bias = shapes.any_layer(f"{layer}.{names.qkv[0]}.bias", depth)
    dense = f"{prefix}pooler.dense"
    decided: dict[str, Any] = {
        "width": width,
        "depth": depth,
        "mlp_width": shapes.layer(f"{layer}.{names.fc1}.weight", depth, 2)[0],
        "patch_size": square_or_pair(height, patch_width),
        "channels": channels,
        "classes": classes,
        "class_token": class_token,
        "pool": "cls" if class_token else "mean",
        "qkv_bias": bias is not None,
        "head": "linear",
        "representation_size": None,
    }
    if pooler and not classes:
        decided["head"] = "mlp"
        decided["representation_size"] = shapes.classes(f"{dense}.weight", f"{dense}.bias", 0)
    inner = shapes.layer(f"{layer}.{names.qkv[0]}.weight", depth, 2)[0]
    return Inferred(
        decided=decided,
        defaults={"norm_eps": 1e-12, "gelu": "erf"},
        attention_width=inner,
        positions=shapes.table(positions),
        class_token_name=f"{prefix}embeddings.cls_token",
        dialect=frozenset([*(["release-5"] * new), *([prefix] if prefix else [])]),
        ignored=(*mask, *(pooler if classes else ())),
    )


def rules(config: ViTConfig, dialect: Dialect) -> list[Rule]:
    """Every tensor of the config, under the published names unless the dialect is newer."""
    names = RELEASE_5 if "release-5" in dialect else PUBLISHED
    prefix = next((p for p in PREFIXES if p in dialect), "vit." if config.classes else "")
    embeddings = f"{prefix}embeddings"
    found = [
        *([same("cls_token", f"{embeddings}.cls_token")] if config.class_token else []),
        moved("positions.0.table", f"{embeddings}.position_embeddings", "1 n d -> n d"),
        *both("stem.proj", f"{embeddings}.patch_embeddings.projection"),
        *both("encoder.norm", f"{prefix}layernorm"),
    ]
    for layer in range(config.depth):
        theirs = prefix + names.layer.format(layer)
        found += _layer_rules(f"encoder.blocks.{layer}", theirs, names, config)
    if config.head == "mlp":
        found += both("pre_logits", f"{prefix}pooler.dense")
    if config.classes:
        found += both("head", "classifier")
    return found


def _layer_rules(ours: str, theirs: str, names: Names, config: ViTConfig) -> list[Rule]:
    three = (("three", 3),)
    weights, biases = (
        tuple(f"{theirs}.{name}.{kind}" for name in names.qkv) for kind in ("weight", "bias")
    )
    qkv = f"{ours}.attention.qkv"
    found = [Rule((f"{qkv}.weight",), weights, "three e d -> (three e) d", three)]
    if config.qkv_bias:
        found.append(Rule((f"{qkv}.bias",), biases, "three e -> (three e)", three))
    return [
        *found,
        *both(f"{ours}.norm1", f"{theirs}.layernorm_before"),
        *both(f"{ours}.attention.proj", f"{theirs}.{names.out}"),
        *both(f"{ours}.norm2", f"{theirs}.layernorm_after"),
        *both(f"{ours}.mlp.fc1", f"{theirs}.{names.fc1}"),
        *both(f"{ours}.mlp.fc2", f"{theirs}.{names.fc2}"),
    ]


def check(config: ViTConfig) -> None:
    """Raise for anything that transformers' ViTConfig has no keys for."""
    require_plain("huggingface", config, **CLASS_TOKEN)
    if config.heads * config.key_width != config.width:
        require("huggingface", config, head_width=(None, config.width // config.heads))
    if config.head == "mlp" and config.classes:
        raise WeightsError(
            f"format 'huggingface' cannot express head='mlp' with classes={config.classes}; "
            f"valid: head='linear', or classes=0 (a ViTModel with its pooler){DROP_HEAD}"
        )


LAYOUT = Layout(name="huggingface", recognise=recognise, infer=infer, rules=rules, check=check)
