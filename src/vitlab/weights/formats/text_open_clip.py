"""Text towers of OpenCLIP and of OpenAI's CLIP; those of custom models are under `text.`."""

from collections.abc import Collection, Mapping
from typing import Any

from vitlab.errors import WeightsError
from vitlab.models.config import ViTConfig
from vitlab.models.text import TextConfig
from vitlab.weights.formats.open_clip import OPENAI
from vitlab.weights.formats.rules import Dialect, Rule, Shape, both, moved, same
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
from vitlab.weights.reading import flag, integer, one_of, section

PREFIX = "text."
BLOCKS = "transformer.resblocks."
FIXED: dict[str, tuple[Any, ...]] = {
    "embed_cls": (False,),
    "hf_model_name": (None,),
    "block_type": (None, "default"),
    "use_pad_mask": (False,),
    **dict.fromkeys(("qk_norm", "scaled_cosine_attn", "scale_heads"), (False,)),
    **dict.fromkeys(("scale_attn_inner", "scale_attn", "scale_fc"), (False,)),
}
"""Keys of `text_cfg` that are supported with these values only."""
POOLS = ("argmax", "eos", "first", "last")
LINEAR = "linear"
"""Dialect of files whose projection is a linear layer, not a matrix with its axes reversed."""
VECTOR = "vector"
"""Dialect of files whose scale and bias are vectors of one number."""


def recognise(names: Collection[str]) -> bool:
    return any(f"{prefix}token_embedding.weight" in names for prefix in ("", PREFIX))


def infer(
    shapes: Mapping[str, Shape], content: Mapping[str, Any] | None, image: ViTConfig
) -> TextInferred:
    """Config from the shapes and from `model_cfg` of open_clip_config.json."""
    prefix = PREFIX if f"{PREFIX}token_embedding.weight" in shapes else ""
    blocks, projection = f"{prefix}{BLOCKS}", f"{prefix}text_projection"
    model = section(content or {}, "model_cfg")
    text = section(model, "text_cfg") if content is not None else None
    _check(shapes, prefix, text or {})
    vocabulary, width = sized(shapes, f"{prefix}token_embedding.weight", 2)
    linear = f"{projection}.weight" in shapes
    sigmoid = "logit_bias" in shapes
    assumed: list[str] = []
    pool, eos, causal = _pool(text, assumed, siglip=linear and sigmoid)
    config = TextConfig(
        width=width,
        depth=depth_of(shapes, blocks),
        heads=_heads(text, width, assumed),
        mlp_width=sized(shapes, f"{blocks}0.mlp.c_fc.weight", 2)[0],
        vocabulary=vocabulary,
        context=sized(shapes, f"{prefix}positional_embedding", 2)[0],
        embedding=_embedding(shapes, projection, linear=linear),
        projection_bias=f"{projection}.bias" in shapes,
        causal=causal,
        pool=pool,
        eos=eos,
        gelu=_gelu(shapes, model, text, image, assumed),
        norm_eps=_eps(text, assumed, siglip=linear and sigmoid),
        layer_scale=1e-5 if f"{blocks}0.ls_1.gamma" in shapes else None,
        task="multi-label" if sigmoid else "single-label",
    )
    dialects = {PREFIX: prefix, LINEAR: linear, VECTOR: shapes.get("logit_scale") == (1,)}
    return TextInferred(
        config=config,
        dialect=frozenset(name for name, used in dialects.items() if used),
        ignored=tuple(name for name in shapes if name in OPENAI),
        assumed=tuple(assumed),
    )


def _check(shapes: Mapping[str, Shape], prefix: str, text: Mapping[str, Any]) -> None:
    """Raise for a text tower with parts that ours has not."""
    for key, valid in FIXED.items():
        if key in text:
            one_of(f"text_cfg: {key}", text[key], valid)
    if f"{prefix}cls_emb" in shapes:
        raise WeightsError(
            f"a CoCa text tower, by tensor {prefix + 'cls_emb'!r}: not supported; valid: those of "
            f"CLIP and SigLIP"
        )


def _pool(
    text: Mapping[str, Any] | None, assumed: list[str], *, siglip: bool
) -> tuple[Any, int | None, bool]:
    """Pooled token, number of the token `eos`, and whether the mask is causal."""
    if text is None:
        if siglip:
            assume("pool", "last", assumed)
            assume("causal", False, assumed)
        return ("last", None, False) if siglip else ("argmax", None, True)
    pool = one_of("text_cfg: pool_type", text.get("pool_type", "argmax"), POOLS)
    eos = integer("text_cfg: eos_id", text.get("eos_id", 2)) if pool == "eos" else None
    return pool, eos, not flag("text_cfg: no_causal_mask", text.get("no_causal_mask", False))


def _heads(text: Mapping[str, Any] | None, width: int, assumed: list[str]) -> int:
    return heads_of(None if text is None else text.get("heads", 8), width, assumed)


def _embedding(shapes: Mapping[str, Shape], projection: str, *, linear: bool) -> int | None:
    if linear:
        return sized(shapes, f"{projection}.weight", 2)[0]
    return sized(shapes, projection, 2)[1] if projection in shapes else None


def _gelu(
    shapes: Mapping[str, Shape],
    model: Mapping[str, Any],
    text: Mapping[str, Any] | None,
    image: ViTConfig,
    assumed: list[str],
) -> Any:
    if any(name in shapes for name in OPENAI):
        return "quick"
    if text is None:
        return assume("gelu", image.gelu, assumed)
    if flag("quick_gelu", model.get("quick_gelu", False)):
        return "quick"
    approximate = section(text, "act_kwargs").get("approximate", "none")
    return {"none": "erf", "tanh": "tanh"}[
        one_of("act_kwargs: approximate", approximate, ("none", "tanh"))
    ]


def _eps(text: Mapping[str, Any] | None, assumed: list[str], *, siglip: bool) -> float:
    if text is None:
        return float(assume("norm_eps", 1e-6, assumed)) if siglip else 1e-5
    return number("norm_kwargs: eps", section(text, "norm_kwargs").get("eps", 1e-5))


def rules(config: TextConfig, dialect: Dialect) -> list[Rule]:
    """Every tensor of the tower, and the scale and bias of the similarities."""
    prefix, shape = (PREFIX if PREFIX in dialect else ""), ((1,) if VECTOR in dialect else ())
    found = [
        same("token_embedding.weight", f"{prefix}token_embedding.weight"),
        same("position_table", f"{prefix}positional_embedding"),
        *both("norm", f"{prefix}ln_final"),
        scalar("logit_scale", "logit_scale", shape=shape),
    ]
    if config.task == "multi-label":
        found.append(scalar("logit_bias", "logit_bias", shape=shape))
    projection = f"{prefix}text_projection"
    if LINEAR in dialect:
        found += both("projection", projection, bias=config.projection_bias)
    elif config.embedding is not None:
        found.append(moved("projection.weight", projection, "d e -> e d"))
    for layer in range(config.depth):
        found += _layer_rules(f"blocks.{layer}", f"{prefix}{BLOCKS}{layer}", config)
    return found


def _layer_rules(ours: str, theirs: str, config: TextConfig) -> list[Rule]:
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


LAYOUT = TextLayout(
    name="open-clip",
    recognise=recognise,
    config_file="open_clip_config.json",
    infer=infer,
    rules=rules,
)
