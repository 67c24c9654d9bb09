"""Google's checkpoints: the paper's release, AugReg, their hybrids, and big_vision's naming.

Two generations of names: `prelinen` (as published: attention is `_1`, LayerNorms 0 and 2, the MLP
`_3`, GroupNorm parameters of four axes) and `linen` (as written by Flax today).
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from vitlab.errors import WeightsError
from vitlab.models.config import ViTConfig
from vitlab.weights.formats.rules import (
    Dialect,
    Inferred,
    Layout,
    Rule,
    StoredShapes,
    moved,
    require,
    require_plain,
    same,
    square_or_pair,
)

# The ResNet of Google's hybrids: root, numbered stages (`block1`) and units (`unit1`).

CONV = "h w i o -> o i h w"
GROUP_NORM = "1 1 1 c -> c"
"""Published files keep the axes over which the parameters are broadcast."""


def scale_and_bias(ours: str, theirs: str) -> list[Rule]:
    """Rules for the parameters of a normalisation."""
    return [same(f"{ours}.weight", f"{theirs}/scale"), same(f"{ours}.bias", f"{theirs}/bias")]


def resnet_stem(shapes: StoredShapes) -> dict[str, Any]:
    """ResNet of the hybrid, from its root kernel and its numbered units."""
    if not any(name.startswith(("conv_root/", "gn_root/", "block1/")) for name in shapes):
        return {"stem": "patch"}
    stages = shapes.numbered(r"block(\d+)/unit") - 1
    layers = tuple(shapes.numbered(rf"block{s}/unit(\d+)/") - 1 for s in range(1, stages + 1))
    root = shapes.sized("conv_root/kernel", 4)
    return {
        "stem": "resnet",
        "resnet_layers": layers,
        "resnet_width": root[3],
        "channels": root[2],
    }


def resnet_rules(config: ViTConfig, group_norm: str | None) -> list[Rule]:
    """Every tensor of the ResNet; `group_norm` is the pattern of its norms' parameters."""
    found = _conv_and_norm("stem.resnet.root", ("conv", "norm"), "", ("conv_root", "gn_root"))
    for stage, units in enumerate(config.resnet_layers):
        for unit in range(units):
            ours = f"stem.resnet.stages.{stage}.{unit}"
            theirs = f"block{stage + 1}/unit{unit + 1}/"
            parts = ["1", "2", "3", *(["_proj"] if unit == 0 else [])]
            for part in parts:
                pair = (f"conv{part}", f"norm{part}")
                found += _conv_and_norm(ours, pair, theirs, (f"conv{part}", f"gn{part}"))
    if group_norm is None:
        return found
    return [rule if rule.pattern else Rule(rule.ours, rule.theirs, group_norm) for rule in found]


def _conv_and_norm(
    ours: str, our_parts: tuple[str, str], theirs: str, their_parts: tuple[str, str]
) -> list[Rule]:
    return [
        moved(f"{ours}.{our_parts[0]}.weight", f"{theirs}{their_parts[0]}/kernel", CONV),
        *scale_and_bias(f"{ours}.{our_parts[1]}", f"{theirs}{their_parts[1]}"),
    ]


BLOCK = "Transformer/encoderblock_{}"
POSITIONS = {
    "": "Transformer/posembed_input/pos_embedding",
    "pos:encoder": "Transformer/pos_embedding",
    "pos:top": "pos_embedding",
}
"""Names of the table: the paper's code, big_vision until 2022, big_vision since."""
DENSE = "i o -> o i"


@dataclass(frozen=True)
class Names:
    """Names of the parts of a block in one generation."""

    attention: str
    norm2: str
    mlp: str


PRELINEN = Names("MultiHeadDotProductAttention_1", "LayerNorm_2", "MlpBlock_3")
LINEN = Names("MultiHeadDotProductAttention_0", "LayerNorm_1", "MlpBlock_0")


def recognise(names: Collection[str]) -> bool:
    return any(name.startswith("Transformer/encoderblock_") for name in names)


def infer(shapes: StoredShapes, hints: dict[str, Any]) -> Inferred:
    """Config from the kernels' shapes, which decide everything but the epsilons and the GELU."""
    depth = shapes.numbered(r"Transformer/encoderblock_(\d+)/")
    linen = any(f"/{LINEN.attention}/" in name for name in shapes)
    names = LINEN if linen else PRELINEN
    height, patch_width, channels, width = shapes.sized("embedding/kernel", 4)
    _, heads, head_width = shapes.layer(f"{BLOCK}/{names.attention}/query/kernel", depth, 3)
    where = next((tag for tag, name in POSITIONS.items() if name in shapes), None)
    bias, out_bias = (
        shapes.any_layer(f"{BLOCK}/{names.attention}/{part}/bias", depth)
        for part in ("query", "out")
    )
    decided: dict[str, Any] = {
        "width": width,
        "depth": depth,
        "heads": heads,
        "head_width": None if heads * head_width == width else head_width,
        "mlp_width": shapes.layer(f"{BLOCK}/{names.mlp}/Dense_0/kernel", depth, 2)[1],
        "patch_size": square_or_pair(height, patch_width),
        "channels": channels,
        "classes": shapes.classes("head/kernel", "head/bias", 1),
        "class_token": "cls" in shapes,
        "qkv_bias": bias is not None,
        "proj_bias": out_bias is not None,
        **_head(shapes),
        **_pool(shapes),
        **resnet_stem(shapes),
    }
    flags = {
        "linen": linen,
        "flat-groupnorm": _flat_group_norm(shapes),
        where or "": bool(where),
    }
    return Inferred(
        decided=decided,
        constants={
            "norm_eps": 1e-6,
            "gelu": "tanh",
            "resnet_norm_eps": 1e-6,
            "resnet_std_eps": 1e-5,
            "resnet_std_eps_at": "std",
        },
        positions=None if where is None else (POSITIONS[where], _rows(shapes, where)),
        prefixes=("none", "cls") if where else ("cls", "none"),
        class_token_name="cls",
        dialect=frozenset(tag for tag, present in flags.items() if present and tag),
    )


def _rows(shapes: StoredShapes, where: str) -> int:
    return shapes.sized(POSITIONS[where], 3)[1]


def _flat_group_norm(shapes: StoredShapes) -> bool:
    return len(shapes.get("gn_root/scale", (1, 1, 1, 1))) == 1


def _head(shapes: StoredShapes) -> dict[str, Any]:
    if "pre_logits/kernel" not in shapes and "pre_logits/bias" not in shapes:
        return {"head": "linear", "representation_size": None}
    return {
        "head": "mlp",
        "representation_size": shapes.classes("pre_logits/kernel", "pre_logits/bias", 1),
    }


def _pool(shapes: StoredShapes) -> dict[str, Any]:
    if any(name.startswith("MAPHead_0/") for name in shapes):
        return {"pool": "map"}
    return {"pool": "cls" if "cls" in shapes else "mean"}


def rules(config: ViTConfig, dialect: Dialect) -> list[Rule]:
    """Every tensor of the config in the naming of `dialect`."""
    where = _where(config, dialect)
    linen = "linen" in dialect or bool(where)
    names = LINEN if linen else PRELINEN
    flat = "flat-groupnorm" in dialect
    found = [
        moved("stem.proj.weight", "embedding/kernel", CONV),
        same("stem.proj.bias", "embedding/bias"),
        *scale_and_bias("encoder.norm", "Transformer/encoder_norm"),
    ]
    if config.position == "learned1d":
        found.append(moved("positions.0.table", POSITIONS[where], "1 n d -> n d"))
    if config.class_token:
        found.append(same("cls_token", "cls"))
    if config.stem == "resnet":
        found += resnet_rules(config, None if flat else GROUP_NORM)
    for layer in range(config.depth):
        found += _block_rules(f"encoder.blocks.{layer}", BLOCK.format(layer), names, config)
    if config.pool == "map":
        found += _map_rules(config)
    if config.head == "mlp":
        found += _dense("pre_logits", "pre_logits")
    if config.classes:
        found += _dense("head", "head")
    return found


def _where(config: ViTConfig, dialect: Dialect) -> str:
    """Location of the table; only big_vision has attention pooling, or no class-token position."""
    tokens_alone = config.class_token and not config.positioned_prefix
    default = "pos:top" if config.pool == "map" or tokens_alone else ""
    return next((tag for tag in POSITIONS if tag in dialect), default)


def _dense(ours: str, theirs: str) -> list[Rule]:
    return [
        moved(f"{ours}.weight", f"{theirs}/kernel", DENSE),
        same(f"{ours}.bias", f"{theirs}/bias"),
    ]


def _block_rules(ours: str, theirs: str, names: Names, config: ViTConfig) -> list[Rule]:
    attention = f"{theirs}/{names.attention}"
    parts = tuple(f"{attention}/{part}" for part in ("query", "key", "value"))
    axes = (("three", 3), ("a", config.heads))
    kernels = Rule(
        (f"{ours}.attention.qkv.weight",),
        tuple(f"{part}/kernel" for part in parts),
        "three d a k -> (three a k) d",
        axes,
    )
    biases = Rule(
        (f"{ours}.attention.qkv.bias",),
        tuple(f"{part}/bias" for part in parts),
        "three a k -> (three a k)",
        axes,
    )
    out = f"{ours}.attention.proj.weight"
    return [
        *scale_and_bias(f"{ours}.norm1", f"{theirs}/LayerNorm_0"),
        kernels,
        *([biases] if config.qkv_bias else []),
        moved(out, f"{attention}/out/kernel", "a k d -> d (a k)", a=config.heads),
        *([same(f"{ours}.attention.proj.bias", f"{attention}/out/bias")] * config.proj_bias),
        *scale_and_bias(f"{ours}.norm2", f"{theirs}/{names.norm2}"),
        *_dense(f"{ours}.mlp.fc1", f"{theirs}/{names.mlp}/Dense_0"),
        *_dense(f"{ours}.mlp.fc2", f"{theirs}/{names.mlp}/Dense_1"),
    ]


def _map_rules(config: ViTConfig) -> list[Rule]:
    theirs, heads = "MAPHead_0/MultiHeadDotProductAttention_0", config.heads
    found = [
        same("pool.probe", "MAPHead_0/probe"),
        *scale_and_bias("pool.norm", "MAPHead_0/LayerNorm_0"),
    ]
    for ours, name in (("q", "query"), ("k", "key"), ("v", "value")):
        kernel, bias = f"{theirs}/{name}/kernel", f"{theirs}/{name}/bias"
        found += [
            moved(f"pool.attention.{ours}.weight", kernel, "d a k -> (a k) d", a=heads),
            moved(f"pool.attention.{ours}.bias", bias, "a k -> (a k)", a=heads),
        ]
    return [
        *found,
        moved("pool.attention.out.weight", f"{theirs}/out/kernel", "a k d -> d (a k)", a=heads),
        same("pool.attention.out.bias", f"{theirs}/out/bias"),
        *_dense("pool.mlp.fc1", "MAPHead_0/MlpBlock_0/Dense_0"),
        *_dense("pool.mlp.fc2", "MAPHead_0/MlpBlock_0/Dense_1"),
    ]


def check(config: ViTConfig) -> None:
    """Raise for anything the original does not compute: its GELU and epsilons are built in."""
    require_plain(
        "google",
        config,
        stem=("patch", "resnet"),
        proj_bias=None,
        gelu=("tanh",),
        norm_eps=(1e-6,),
    )
    if config.stem == "resnet":
        require(
            "google",
            config,
            resnet_norm_eps=(1e-6,),
            resnet_std_eps=(1e-5,),
            resnet_std_eps_at=("std",),
        )
    pools = ("cls",) if config.class_token else ("mean", "mean_all", "map")
    require("google", config, pool=pools)
    if config.pool == "map" and config.stem == "resnet":
        raise WeightsError("format 'google' cannot express pool='map' with stem='resnet'")


LAYOUT = Layout(name="google", recognise=recognise, infer=infer, rules=rules, check=check)
