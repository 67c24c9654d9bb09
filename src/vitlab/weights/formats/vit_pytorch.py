"""vit-pytorch: the current release, and the one whose `mean` also averages the class token.

The older one keeps the class token as [1, 1, D] and the table as [1, N, D], always with a class
token; the current one drops the leading axis, and the class token with `pool="mean"`. `SimpleViT`
(arXiv:2205.01580), with registers or without, has fixed sines and cosines and no class token.
"""

import math
import re
from collections.abc import Collection
from typing import Any

import torch

from vitlab.errors import WeightsError
from vitlab.models.config import ViTConfig, pair
from vitlab.weights.formats.rules import (
    Dialect,
    Inferred,
    Layout,
    Rule,
    StoredShapes,
    both,
    fixed,
    moved,
    require_plain,
    same,
    square_or_pair,
)

LAYER = "transformer.layers.{}"
STEM = "to_patch_embedding"
REGISTERS = "register_tokens"
FLAT = "(p1 p2 c)"
"""Row-major over the patch and channel-last: the order of the library's flattened patches."""


def recognise(names: Collection[str]) -> bool:
    return any(re.match(r"transformer\.layers\.\d+\.[01]\.", name) for name in names)


def infer(shapes: StoredShapes, hints: dict[str, Any]) -> Inferred:
    """Config except head width, channels against patch size, and in older files the pool."""
    depth = shapes.numbered(r"transformer\.layers\.(\d+)\.")
    width, flat = shapes.sized(f"{STEM}.2.weight", 2)
    inner = shapes.layer(f"{LAYER}.0.to_qkv.weight", depth, 2)[0] // 3
    simple = not shapes.keys() & {"pos_embedding", "cls_token"}
    older = not simple and len(shapes.first("pos_embedding")) == 3
    tokens = 0 if simple else _class_tokens(shapes, older=older)
    head, out, _ = _names(simple=simple)
    channels, patch_size = _patch(flat, hints)
    decided: dict[str, Any] = {
        "width": width,
        "depth": depth,
        "mlp_width": shapes.layer(f"{LAYER}.1.net.1.weight", depth, 2)[0],
        "patch_size": patch_size,
        "patch_norm": "both",
        "channels": channels,
        "classes": shapes.classes(f"{head}.weight", f"{head}.bias", 0),
        "class_token": bool(tokens),
        "registers": shapes.sized(REGISTERS, 2)[0] if REGISTERS in shapes else 0,
        "head": "linear",
        "qkv_bias": False,
        "proj": shapes.any_layer(f"{LAYER}.0.{out}.weight", depth) is not None,
        "proj_bias": not simple,
        **({"position": "sincos2d"} if simple else {}),
        "gelu": "erf",
        "norm_eps": 1e-5,
    }
    if not older:
        decided["pool"] = "cls" if tokens else "mean"
    if not decided["proj"]:
        decided["heads"] = 1
    return Inferred(
        decided=decided,
        defaults={"pool": "cls"} if older else {},
        attention_width=inner,
        published_heads={},  # `dim_head` is 64 for every width
        positions=None if simple else ("pos_embedding", shapes.first("pos_embedding")[-2]),
        dialect=frozenset(["older"] if older else []),
        notes=() if "patch_size" in hints else (f"patch_size {patch_size}, channels {channels}",),
    )


def _names(*, simple: bool) -> tuple[str, str, str]:
    """Names of the head, of the projection of the heads and of the last layer of an MLP."""
    return ("linear_head", "to_out", "net.3") if simple else ("mlp_head", "to_out.0", "net.4")


def _class_tokens(shapes: StoredShapes, *, older: bool) -> int:
    if older:
        return shapes.sized("cls_token", 3)[1]
    count = shapes.sized("cls_token", 2)[0]
    if count > 1:
        raise WeightsError(f"tensor 'cls_token' holds {count} class tokens; valid: 0 or 1")
    return count


def _patch(flat: int, hints: dict[str, Any]) -> tuple[int, int | tuple[int, int]]:
    """Channels and patch size whose product is the length of a flattened patch."""
    if "patch_size" in hints:
        height, width = pair(hints["patch_size"])
        if flat % (height * width):
            raise WeightsError(
                f"patch_size {hints['patch_size']} does not divide the {flat} numbers of a patch"
            )
        return flat // (height * width), square_or_pair(height, width)
    wanted = [hints["channels"]] if "channels" in hints else []
    for channels in (*wanted, 3, 1, 2, 4, *range(5, 17)):
        side = math.isqrt(flat // channels)
        if side * side * channels == flat:
            return channels, side
    raise WeightsError(f"a patch of {flat} numbers is not square; pass patch_size=(height, width)")


def rules(config: ViTConfig, dialect: Dialect) -> list[Rule]:
    """Every tensor of the config; pooling over a class token exists in the older release only."""
    older = "older" in dialect or _only_older(config)
    height, width = pair(config.patch_size)
    axes = {"p1": height, "p2": width, "c": config.channels}
    before = "stem.norm_before"
    found = [
        moved(f"{before}.weight", f"{STEM}.1.weight", f"{FLAT} -> (c p1 p2)", **axes),
        moved(f"{before}.bias", f"{STEM}.1.bias", f"{FLAT} -> (c p1 p2)", **axes),
        moved("stem.proj.weight", f"{STEM}.2.weight", f"d {FLAT} -> d c p1 p2", **axes),
        same("stem.proj.bias", f"{STEM}.2.bias"),
        *both("stem.norm_after", f"{STEM}.3"),
        *both("encoder.norm", "transformer.norm"),
    ]
    simple = config.position == "sincos2d"
    if simple:
        rows = [moved("registers", REGISTERS, "n d -> 1 n d")] if config.registers else []
        found += rows
    elif older:
        found.append(moved("positions.0.table", "pos_embedding", "1 n d -> n d"))
        found.append(same("cls_token", "cls_token"))
    else:
        found.append(same("positions.0.table", "pos_embedding"))
        found.append(_class_token(config))
    for layer in range(config.depth):
        found += _layer_rules(f"encoder.blocks.{layer}", LAYER.format(layer), config)
    if config.classes:
        found += both("head", _names(simple=simple)[0])
    return found


def _class_token(config: ViTConfig) -> Rule:
    if config.class_token:
        return moved("cls_token", "cls_token", "n d -> 1 n d")
    return fixed("cls_token", lambda: torch.zeros(0, config.width))


def _only_older(config: ViTConfig) -> bool:
    return config.class_token and config.pool == "mean_all"


def _layer_rules(ours: str, theirs: str, config: ViTConfig) -> list[Rule]:
    _, last, second = _names(simple=config.position == "sincos2d")
    proj = both(f"{ours}.attention.proj", f"{theirs}.0.{last}", bias=config.proj_bias)
    out = proj if config.proj else []
    return [
        *both(f"{ours}.norm1", f"{theirs}.0.norm"),
        same(f"{ours}.attention.qkv.weight", f"{theirs}.0.to_qkv.weight"),
        *out,
        *both(f"{ours}.norm2", f"{theirs}.1.net.0"),
        *both(f"{ours}.mlp.fc1", f"{theirs}.1.net.1"),
        *both(f"{ours}.mlp.fc2", f"{theirs}.1.{second}"),
    ]


def check(config: ViTConfig) -> None:
    """Raise for settings that the library's models lack; epsilon and GELU are built in."""
    if config.position == "sincos2d":
        return _check_simple(config)
    single = config.heads == 1 and config.key_width == config.width
    require_plain(
        "vit-pytorch",
        config,
        patch_norm=("both",),
        head=("linear",),
        gelu=("erf",),
        norm_eps=(1e-5,),
        qkv_bias=(False,),
        proj=(not single,),
        position_prefix=("cls", "all") if config.class_token else None,
        pool=("cls", "mean_all") if config.class_token else ("mean", "mean_all"),
    )


def _check_simple(config: ViTConfig) -> None:
    """Raise for settings that SimpleViT lacks."""
    require_plain(
        "vit-pytorch",
        config,
        position=("sincos2d",),
        position_grid=(None, config.grid),
        patch_norm=("both",),
        class_token=(False,),
        registers=None,
        pool=("mean",),
        head=("linear",),
        gelu=("erf",),
        norm_eps=(1e-5,),
        qkv_bias=(False,),
        proj_bias=(False,),
    )


LAYOUT = Layout(name="vit-pytorch", recognise=recognise, infer=infer, rules=rules, check=check)
