"""timm's names, which are also those of DeiT, DINO, DINOv2, DINOv3, MAE, BEiT and EVA-02.

Authors' own files differ in some names (`renaming`), and have buffers besides the weights.
"""

import math
import re
from collections.abc import Callable, Collection
from typing import Any

import torch

from vitlab.errors import WeightsError
from vitlab.models.config import ViTConfig
from vitlab.weights.formats.renaming import own_names, renamed_shapes, renamings
from vitlab.weights.formats.rules import (
    Dialect,
    Inferred,
    Layout,
    Rule,
    StoredShapes,
    both,
    fixed,
    moved,
    require_even_heads,
    require_plain,
    same,
    split,
    square_or_pair,
)
from vitlab.weights.formats.timm_blocks import (
    BIAS,
    ENTRIES,
    INDEX,
    SWIGLU,
    block_rules,
    map_rules,
    offset_rules,
)

BACKBONE = "patch_embed.backbone"
SHARED = "rel_pos_bias"
PERIODS = "rope_embed.periods"
TRAINING_ONLY = re.compile(
    r"mask_token$|decoder_|local_cls_norm\.|lm_head\.|rope\.freqs_(cos|sin)$"
    r"|fc\.|(head|dino_head|ibot_head)\.(mlp|last_layer)\."
)
"""Token of masked patches, MAE's decoder, heads of pre-training (BEiT, MSN, DINO), and rotations
that follow from the config."""
ROTARY: dict[str, dict[str, Any]] = {
    "eva": {"rope": True, "rope_form": "eva", "rope_theta": 1e4, "position_grid": (16, 16)},
    "pe": {"rope": True, "rope_form": "pe", "rope_theta": 1e4},
}
"""Rotary positions of EVA-02 and of Perception Encoders, which have no tensors."""


def recognise(names: Collection[str]) -> bool:
    return any(re.match(r"blocks\.\d+\.(attn|norm1|mlp)\.", name) for name in names)


def infer(shapes: StoredShapes, hints: dict[str, Any]) -> Inferred:
    """Config except heads, the epsilons, the GELU and, with a class token, the pool."""
    own = renamings(shapes)
    ignored = tuple(name for name in shapes if TRAINING_ONLY.match(name))
    shapes = renamed_shapes(shapes, own)
    depth = shapes.numbered(r"blocks\.(\d+)\.")

    def has(part: str) -> bool:
        return shapes.any_layer(f"blocks.{{}}.{part}", depth) is not None

    width, channels, height, patch_width = shapes.sized("patch_embed.proj.weight", 4)
    decided: dict[str, Any] = {
        "width": width,
        "depth": depth,
        **_mlp(shapes, depth, has),
        "patch_size": square_or_pair(height, patch_width),
        "patch_bias": "patch_embed.proj.bias" in shapes,
        "patch_norm": "after" if "patch_embed.norm.weight" in shapes else "none",
        "channels": channels,
        "classes": shapes.classes("head.weight", "head.bias", 0),
        "head": "linear",
        **_prefix(shapes),
        **_biases(has),
        "qk_norm": has("attn.q_norm.weight"),
        "attention_norm": has("attn.norm.weight"),
        "norm_kind": "layer" if has("norm1.bias") else "rms",
        "layer_scale": 1e-5 if has("gamma_1") or has("ls1.gamma") else None,
        "embed_norm": any(name.startswith("norm_pre.") for name in shapes),
        **_stem(shapes),
        **_relative(shapes, has),
        **_rotary(shapes),
    }
    _check_rotary(shapes, decided, hints)
    inner = _attention(shapes, depth, decided)
    decided_pool, default_pool = _pool(shapes, decided, hints)
    decided |= decided_pool
    gated = decided["mlp_activation"] == "swiglu"
    rows = shapes.sized("pos_embed", 3)[1] if "pos_embed" in shapes else None
    meta = "register_tokens" in shapes
    return Inferred(
        decided=decided,
        defaults={
            **default_pool,
            "norm_eps": _norm_eps(decided, hints),
            **({} if gated and "pool_mlp_width" not in decided else {"gelu": "erf"}),
            "norm": "pre",
            **_assumed_rotary(shapes, decided),
        },
        constants={
            "resnet_norm_eps": 1e-5,
            "resnet_std_eps": 1e-8,
            "resnet_std_eps_at": "variance",
        },
        attention_width=inner,
        positions=None if rows is None else ("pos_embed", rows),
        offsets=_offsets(shapes, depth),
        prefixes=("cls", "none", "all") if meta else ("all", "none", "cls"),
        values={"rope_periods": PERIODS} if PERIODS in shapes else {},
        dialect=frozenset(
            [
                *(each.tag for each in own),
                *_dialect(shapes, has),
            ]
        ),
        ignored=ignored,
    )


def _dialect(shapes: StoredShapes, has: Callable[[str], bool]) -> set[str]:
    """Tags of the names and buffers of a file."""
    found = {
        "register_tokens": "register_tokens" in shapes,
        "reg_token": "reg_token" in shapes,
        "gamma": has("gamma_1"),
        "q_proj": has("attn.q_proj.weight"),
        "q_bias": has("attn.q_bias"),
        "masked": has("attn.qkv.bias_mask"),
        "index": has(f"attn.{INDEX}") or f"{SHARED}.{INDEX}" in shapes,
        "periods": PERIODS in shapes,
        **{tag: has(f"mlp.{tag}.weight") for tag in SWIGLU},
    }
    return {tag for tag, present in found.items() if present}


def _prefix(shapes: StoredShapes) -> dict[str, Any]:
    """Class token, registers and the distillation token, which is the first register."""
    names = ("dist_token", "reg_token", "register_tokens")
    counts = {name: shapes.sized(name, 3)[1] for name in names if name in shapes}
    if "dist_token" in counts and len(counts) > 1:
        raise WeightsError("a distillation token beside registers: not supported; valid: one kind")
    return {"class_token": "cls_token" in shapes, "registers": sum(counts.values())}


def _attention(shapes: StoredShapes, depth: int, decided: dict[str, Any]) -> int:
    """Heads x head width; norms of queries show the number of heads."""
    apart = shapes.any_layer("blocks.{}.attn.q_proj.weight", depth) is not None
    matrix = "blocks.{}.attn.q_proj.weight" if apart else "blocks.{}.attn.qkv.weight"
    inner = shapes.layer(matrix, depth, 2)[0] // (1 if apart else 3)
    if q_norm := shapes.any_layer("blocks.{}.attn.q_norm.weight", depth):
        decided["heads"] = inner // shapes.sized(q_norm, 1)[0]
    if table := shapes.any_layer(f"blocks.{{}}.attn.{BIAS}", depth):
        decided["heads"] = shapes.sized(table, 2)[1]
    if f"{SHARED}.{BIAS}" in shapes:
        decided["heads"] = shapes.sized(f"{SHARED}.{BIAS}", 2)[1]
    if "rope.freqs" in shapes:
        decided["heads"] = shapes.sized("rope.freqs", 4)[2]
    return inner


def _norm_eps(decided: dict[str, Any], hints: dict[str, Any]) -> float:
    """Epsilon of CLIP, DINOv3 and AIMv2, and that of all others."""
    dinov3 = hints.get("rope_form") == "dinov3" or decided.get("rope_form") == "dinov3"
    return 1e-5 if decided["embed_norm"] or dinov3 or decided["norm_kind"] == "rms" else 1e-6


def _biases(has: Callable[[str], bool]) -> dict[str, bool]:
    """Biases of attention; BEiT, EVA-02 and DINOv3 have none for the keys."""
    some = has("attn.q_bias") or has("attn.q_proj.bias")
    masked = has("attn.qkv.bias_mask")
    return {
        "qkv_bias": some or has("attn.qkv.bias"),
        "key_bias": not masked and (has("attn.k_proj.bias") or not some),
        "proj_bias": has("attn.proj.bias"),
    }


def _mlp(shapes: StoredShapes, depth: int, has: Callable[[str], bool]) -> dict[str, Any]:
    """Width and kind of the MLP; a SwiGLU has twice as many rows before as columns after it."""
    tag = next((tag for tag in SWIGLU if has(f"mlp.{tag}.weight")), "")
    first, last = SWIGLU.get(tag, ("fc1", "fc2"))
    rows = shapes.layer(f"blocks.{{}}.mlp.{first}.weight", depth, 2)[0]
    columns = shapes.layer(f"blocks.{{}}.mlp.{last}.weight", depth, 2)[1]
    return {
        "mlp_width": rows // 2 if rows == 2 * columns else rows,
        "mlp_activation": "swiglu" if tag or rows == 2 * columns else "gelu",
        "mlp_bias": has(f"mlp.{first}.bias"),
        "mlp_norm": has("mlp.norm.weight"),
    }


def _pool(
    shapes: StoredShapes, decided: dict[str, Any], hints: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Pooling and place of the last norm as far as the tensors show them, and defaults."""
    where = {"norm_at": _norm_at(shapes, hints)}
    if any(name.startswith("attn_pool.") for name in shapes):
        return _attention_pool(shapes, decided, where)
    if "dist_token" in shapes:
        one_head = decided["classes"] and "head_dist.weight" not in shapes
        return {**where, "pool": "cls" if one_head else "cls_dist"}, {}
    if decided["class_token"]:
        return where, {"pool": "mean" if where["norm_at"] == "pooled" else "cls"}
    mean = {"pool": "mean"}
    return (where, mean) if decided["registers"] else ({**mean, **where}, {})


def _norm_at(shapes: StoredShapes, hints: dict[str, Any]) -> str:
    if any(name.startswith("fc_norm.") for name in shapes):
        return "pooled"
    if any(re.match(r"norm\.", name) for name in shapes):
        return "tokens"
    if hints.get("norm_at") == "none":
        return "none"
    raise WeightsError(
        "tensor 'norm.weight' is missing; if the model has no last norm (PE spatial and lang, "
        "InternViT), say so: norm_at='none'"
    )


def _attention_pool(
    shapes: StoredShapes, decided: dict[str, Any], where: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Attention pooling of the patches; that of Perception Encoders has all tokens and 8 heads."""
    own = shapes.sized("attn_pool.mlp.fc1.weight", 2)[0]
    found = {**where, "pool_mlp_width": None if own == decided["mlp_width"] else own}
    if decided["embed_norm"]:
        return {**found, "pool": "map"}, {"pool_heads": 8}
    if decided["class_token"] or decided["registers"]:
        return found, {"pool": "map_patches"}
    return {**found, "pool": "map"}, {}


def _relative(shapes: StoredShapes, has: Callable[[str], bool]) -> dict[str, Any]:
    """Relative positions of BEiT."""
    shared, own = f"{SHARED}.{BIAS}" in shapes, has(f"attn.{BIAS}")
    if shared and own:
        raise WeightsError("relative positions both in each block and shared: not supported")
    if not shared and not own:
        return {}
    position = {} if "pos_embed" in shapes else {"position": "none"}
    return {"relative_table": "shared" if shared else "blocks", **position}


def _offsets(shapes: StoredShapes, depth: int) -> tuple[str, int] | None:
    """Name and rows of a table of BEiT."""
    name = shapes.any_layer(f"blocks.{{}}.attn.{BIAS}", depth)
    name = f"{SHARED}.{BIAS}" if f"{SHARED}.{BIAS}" in shapes else name
    return None if name is None else (name, shapes.sized(name, 2)[0] - ENTRIES)


def _rotary(shapes: StoredShapes) -> dict[str, Any]:
    """Rotary positions that have tensors."""
    if PERIODS in shapes:
        return {"position": "rope", "rope_form": "dinov3"}
    if "rope.freqs" not in shapes:
        return {}
    added = {"rope": True} if "pos_embed" in shapes else {"position": "rope"}
    return {**added, "rope_form": "mixed"}


def _assumed_rotary(shapes: StoredShapes, decided: dict[str, Any]) -> dict[str, Any]:
    """Rotary positions without tensors, where others show that they are likely or possible."""
    if "pos_embed" not in shapes or "rope.freqs" in shapes:
        return {}
    if decided["mlp_activation"] == "swiglu" and not decided["key_bias"]:
        return ROTARY["eva"]
    if decided["embed_norm"] and decided.get("pool") == "map":
        return ROTARY["pe"]
    rows = shapes.sized("pos_embed", 3)[1]
    without_class = decided["class_token"] and math.isqrt(rows) ** 2 == rows
    return {"rope": False} if without_class and decided["layer_scale"] is not None else {}


def _check_rotary(shapes: StoredShapes, decided: dict[str, Any], hints: dict[str, Any]) -> None:
    """Raise, with the likely rotary positions, for a file without any tensor of positions."""
    learned = ("pos_embed", "rope.freqs", PERIODS)
    found = any(name in learned or name.endswith(BIAS) for name in shapes)
    if found or hints.get("position") is not None:
        return
    if not decided["class_token"] and decided["registers"]:
        likely = "position='rope', rope_form='eva', rope_theta=1e4, position_grid=(16, 16)"
        what = "timm's vit_*_rope_reg*"
    elif decided["registers"]:
        likely, what = "position='rope', rope_form='dinov3', pool='mean'", "DINOv3"
    elif decided["layer_scale"] is not None:
        likely, what = "position='rope'", "timm's vit_*_rope_224"
    else:
        return
    raise WeightsError(
        f"the position table is missing; these tensors look like {what}: {likely}; if the model "
        f"has other positions, say so: position='none', 'sincos2d' or 'rope'"
    )


def _stem(shapes: StoredShapes) -> dict[str, Any]:
    """ResNet of the hybrid; a root alone lies directly under `backbone`."""
    if not any(name.startswith(f"{BACKBONE}.") for name in shapes):
        return {"stem": "patch"}
    stages = shapes.numbered(rf"{BACKBONE}\.stages\.(\d+)\.")
    layers = tuple(
        shapes.numbered(rf"{BACKBONE}\.stages\.{s}\.blocks\.(\d+)\.") for s in range(stages)
    )
    root = shapes.sized(f"{BACKBONE}.stem.conv.weight" if layers else f"{BACKBONE}.conv.weight", 4)
    return {
        "stem": "resnet",
        "resnet_layers": layers,
        "resnet_width": root[0],
        "channels": root[1],
    }


def rules(config: ViTConfig, dialect: Dialect) -> list[Rule]:
    """Every tensor of the config under timm's names, or under those of the dialect."""
    layer = config.norm_kind == "layer"
    found = both("stem.proj", "patch_embed.proj", bias=config.patch_bias)
    if config.position == "learned1d":
        found.append(moved("positions.0.table", "pos_embed", "1 n d -> n d"))
    if config.patch_norm == "after":
        found += both("stem.norm_after", "patch_embed.norm", bias=layer)
    if config.class_token:
        found.append(same("cls_token", "cls_token"))
    if config.embed_norm:
        found += both("embed_norm", "norm_pre", bias=layer)
    if config.registers:
        found.append(same("registers", _registers_name(config, dialect)))
    if config.stem == "resnet":
        found += _resnet_rules(config)
    for number in range(config.depth):
        found += block_rules(f"encoder.blocks.{number}", f"blocks.{number}", config, dialect)
    found += _position_rules(config, dialect)
    if config.norm_at == "pooled":
        found += both("pooled_norm", "fc_norm", bias=layer)
    elif config.norm_at == "tokens":
        found += both("encoder.norm", "norm", bias=layer)
    if config.attention_pool:
        found += map_rules()
    return own_names([*found, *_head_rules(config)], dialect)


def _position_rules(config: ViTConfig, dialect: Dialect) -> list[Rule]:
    """Tensors of rotary and relative positions that belong to no single block."""
    blocks = [f"encoder.blocks.{number}.attention" for number in range(config.depth)]
    found: list[Rule] = []
    if config.relative_table == "shared":
        found += offset_rules(blocks, SHARED, config, dialect)
    if config.rotary and config.rope_form == "mixed":
        names = [f"{name}.rope.freqs" for name in blocks]
        pattern = "two l a k -> l two a k" if len(names) > 1 else "two 1 a k -> two a k"
        found.append(split(names, "rope.freqs", pattern))
    if config.rope_periods is not None and "periods" not in dialect:
        raise WeightsError("format 'timm' cannot express rope_periods; valid: None")
    if "periods" in dialect:
        periods = torch.tensor(config.rope_periods)
        found.append(fixed(PERIODS, lambda: periods))
    return found


def _head_rules(config: ViTConfig) -> list[Rule]:
    """One head, or the two of a distilled DeiT."""
    if not config.classes:
        return []
    if config.pool != "cls_dist":
        return both("head", "head")
    patterns = {"weight": "two c d -> c two d", "bias": "two c -> c two"}
    return [
        Rule((f"head.{kind}",), (f"head.{kind}", f"head_dist.{kind}"), pattern)
        for kind, pattern in patterns.items()
    ]


def _registers_name(config: ViTConfig, dialect: Dialect) -> str:
    """Name in the file: Meta's, whose class token alone has a position, or timm's own.

    A file of timm's names with positions as in Meta's is read, but never written.
    """
    if config.pool == "cls_dist" or "dist_token" in dialect:
        return "dist_token"
    for name in ("register_tokens", "reg_token"):
        if name in dialect:
            return name
    if config.class_token and config.position_prefix == "cls" and config.position == "learned1d":
        raise WeightsError(
            f"format 'timm' cannot express registers={config.registers} with "
            f"position_prefix='cls'; valid: 'all' or 'none'"
        )
    return "reg_token"


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
    """Raise for anything that timm's VisionTransformer, Eva and Beit have no arguments for."""
    patch = config.stem == "patch"
    require_plain(
        "timm",
        config,
        stem=("patch", "resnet"),
        patch_norm=("none", "after") if patch else ("none",),
        head=("linear",),
        resnet_std_eps_at=None if patch else ("variance",),
        position=("learned1d", "rope", *(["none"] if config.relative_table != "none" else [])),
        norm=("pre", "res_post"),
        mlp_activation=("gelu", "swiglu"),
        patch_bias=(not config.embed_norm,),
        pool=("cls", "mean", "mean_all", "map", "map_patches", "cls_dist"),
        registers=(1,) if config.pool == "cls_dist" else None,
        **dict.fromkeys(
            (
                *("qk_norm", "layer_scale", "embed_norm", "key_bias", "mlp_norm", "rope"),
                *("attention_norm", "relative_table", "rope_form", "norm_at", "norm_kind"),
                *("pool_heads", "pool_mlp_width"),
            )
        ),
        # timm's proj_bias=False takes the biases of the MLP with it.
        mlp_bias=(config.proj_bias,),
        proj_bias=None,
    )
    require_even_heads("timm", config)


LAYOUT = Layout(name="timm", recognise=recognise, infer=infer, rules=rules, check=check)
