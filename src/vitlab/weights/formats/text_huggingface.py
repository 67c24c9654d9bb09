"""Text towers of Hugging Face transformers' CLIP and SigLIP."""

import re
from collections.abc import Collection, Mapping
from typing import Any

from vitlab.models.config import ViTConfig
from vitlab.models.text import TextConfig
from vitlab.weights.formats.huggingface_config import GELU
from vitlab.weights.formats.rules import Dialect, Rule, Shape, both, same
from vitlab.weights.formats.text_rules import (
    TextInferred,
    TextLayout,
    assume,
    depth_of,
    heads_of,
    number,
    scalar,
    sized,
)
from vitlab.weights.reading import integer, one_of, section

PREFIX = "text_model."
LAYERS = f"{PREFIX}encoder.layers."
EMBEDDINGS = f"{PREFIX}embeddings."
IGNORED = re.compile(r"text_model\.embeddings\.position_ids$")
LEGACY_EOS = 2
"""`eos_token_id` of CLIP's first configs, with which transformers reads the highest token."""
CLIP_DEFAULTS: dict[str, Any] = {
    "num_attention_heads": 8,
    "hidden_act": "quick_gelu",
    "layer_norm_eps": 1e-5,
    "eos_token_id": 49407,
}
SIGLIP_DEFAULTS: dict[str, Any] = {
    "num_attention_heads": 12,
    "hidden_act": "gelu_pytorch_tanh",
    "layer_norm_eps": 1e-6,
}
"""Values of transformers for keys that a `text_config` leaves out."""
VECTOR = "vector"
"""Dialect of files whose scale and bias are vectors of one number."""


def recognise(names: Collection[str]) -> bool:
    return f"{EMBEDDINGS}token_embedding.weight" in names


def infer(
    shapes: Mapping[str, Shape], content: Mapping[str, Any] | None, image: ViTConfig
) -> TextInferred:
    """Config from the shapes and from `text_config` of config.json."""
    siglip = f"{PREFIX}head.weight" in shapes
    projection = f"{PREFIX}head.weight" if siglip else "text_projection.weight"
    assumed: list[str] = []
    vocabulary, width = sized(shapes, f"{EMBEDDINGS}token_embedding.weight", 2)
    stated = _stated(content, SIGLIP_DEFAULTS if siglip else CLIP_DEFAULTS)
    eos = stated.get("eos_token_id", LEGACY_EOS)
    legacy = siglip or integer("eos_token_id", eos) == LEGACY_EOS
    eps = stated.get("layer_norm_eps") or assume("norm_eps", 1e-6 if siglip else 1e-5, assumed)
    config = TextConfig(
        width=width,
        depth=depth_of(shapes, LAYERS),
        heads=heads_of(stated.get("num_attention_heads"), width, assumed),
        mlp_width=sized(shapes, f"{LAYERS}0.mlp.fc1.weight", 2)[0],
        vocabulary=vocabulary,
        context=sized(shapes, f"{EMBEDDINGS}position_embedding.weight", 2)[0],
        embedding=sized(shapes, projection, 2)[0],
        projection_bias=siglip,
        causal=not siglip,
        pool="last" if siglip else "argmax" if legacy else "eos",
        eos=None if legacy else eos,
        gelu=_gelu(stated.get("hidden_act"), image, assumed),
        norm_eps=number("layer_norm_eps", eps),
        task="multi-label" if "logit_bias" in shapes else "single-label",
    )
    vector = shapes.get("logit_scale") == (1,)
    return TextInferred(
        config=config,
        dialect=frozenset([VECTOR] if vector else []),
        ignored=tuple(name for name in shapes if IGNORED.match(name)),
        assumed=tuple(assumed),
    )


def _stated(content: Mapping[str, Any] | None, defaults: Mapping[str, Any]) -> Mapping[str, Any]:
    """`text_config` with transformers' defaults; empty without a config of both towers."""
    if content is None or "text_config" not in content:
        return {}
    return {**defaults, **section(content, "text_config"), **section(content, "text_config_dict")}


def _gelu(given: Any, image: ViTConfig, assumed: list[str]) -> Any:
    if given is None:
        return assume("gelu", image.gelu, assumed)
    return GELU[one_of("hidden_act", given, GELU)]


def rules(config: TextConfig, dialect: Dialect) -> list[Rule]:
    """Every tensor of the tower, and the scale and bias of the similarities."""
    shape = (1,) if VECTOR in dialect else ()
    siglip = config.pool == "last"
    projection = f"{PREFIX}head" if siglip else "text_projection"
    found = [
        same("token_embedding.weight", f"{EMBEDDINGS}token_embedding.weight"),
        same("position_table", f"{EMBEDDINGS}position_embedding.weight"),
        *both("norm", f"{PREFIX}final_layer_norm"),
        *both("projection", projection, bias=config.projection_bias),
        scalar("logit_scale", "logit_scale", shape=shape),
    ]
    if config.task == "multi-label":
        found.append(scalar("logit_bias", "logit_bias", shape=shape))
    for layer in range(config.depth):
        found += _layer_rules(f"blocks.{layer}", f"{LAYERS}{layer}")
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


LAYOUT = TextLayout(
    name="huggingface",
    recognise=recognise,
    config_file="config.json",
    infer=infer,
    rules=rules,
)
