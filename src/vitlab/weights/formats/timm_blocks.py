"""Tensors of one of timm's blocks, and of its attention pooling, as rules."""

from collections.abc import Sequence

import torch
from torch import Tensor

from vitlab.models.config import ViTConfig
from vitlab.weights.formats.rules import Dialect, Rule, both, fixed, same, split, stacked

SCALES = {"": ("ls1.gamma", "ls2.gamma"), "gamma": ("gamma_1", "gamma_2")}
"""LayerScale of timm and DINOv2, and of DeiT-III's own files, BEiT and EVA."""
SWIGLU = {"w12": ("w12", "w3"), "fc1_g": ("fc1_g", "fc2")}
"""First and last matrix of a SwiGLU in Meta's DINOv2, and of one whose gate is a matrix apart."""
BIAS = "relative_position_bias_table"
INDEX = "relative_position_index"
ENTRIES = 3
"""Entries of prefix tokens, the last of a table of BEiT."""
Grid = tuple[int, int]
Tensors = Sequence[Tensor]


def block_rules(ours: str, theirs: str, config: ViTConfig, dialect: Dialect) -> list[Rule]:
    """Every tensor of one block."""
    layer = config.norm_kind == "layer"  # an RMSNorm has no bias
    found = [
        *both(f"{ours}.norm1", f"{theirs}.norm1", bias=layer),
        *both(f"{ours}.attention.proj", f"{theirs}.attn.proj", bias=config.proj_bias),
        *both(f"{ours}.norm2", f"{theirs}.norm2", bias=layer),
    ]
    if config.qk_norm:
        found += both(f"{ours}.attention.q_norm", f"{theirs}.attn.q_norm", bias=layer)
        found += both(f"{ours}.attention.k_norm", f"{theirs}.attn.k_norm", bias=layer)
    if config.attention_norm:
        found += both(f"{ours}.attention.norm", f"{theirs}.attn.norm", bias=layer)
    if config.layer_scale is not None:
        scales = SCALES["gamma" if "gamma" in dialect else ""]
        found.append(same(f"{ours}.scale1.gamma", f"{theirs}.{scales[0]}"))
        found.append(same(f"{ours}.scale2.gamma", f"{theirs}.{scales[1]}"))
    if config.relative_table == "blocks":
        found += offset_rules([f"{ours}.attention"], f"{theirs}.attn", config, dialect)
    found += _qkv_rules(f"{ours}.attention", f"{theirs}.attn", config, dialect)
    return [*found, *_mlp_rules(f"{ours}.mlp", f"{theirs}.mlp", config, dialect)]


def _qkv_rules(ours: str, theirs: str, config: ViTConfig, dialect: Dialect) -> list[Rule]:
    """Queries, keys and values: one matrix or three, with a bias, none, or none for the keys."""
    heads = config.heads
    if "q_proj" not in dialect:
        found = [same(f"{ours}.qkv.weight", f"{theirs}.qkv.weight")]
        if "masked" in dialect:
            return [*found, *_masked_rules(ours, theirs, heads)]
        if not config.key_bias:
            pair = [f"{theirs}.{name}_bias" for name in "qv"]
            return [*found, stacked(f"{ours}.qv_bias", pair, "two (a k) -> two a k", a=heads)]
        return (
            [*found, same(f"{ours}.qkv.bias", f"{theirs}.qkv.bias")] if config.qkv_bias else found
        )
    names = [f"{theirs}.{part}_proj" for part in "qkv"]
    weights = [f"{name}.weight" for name in names]
    found = [stacked(f"{ours}.qkv.weight", weights, "three e d -> (three e) d", three=3)]
    if not config.key_bias:
        tail = "{}_bias" if "q_bias" in dialect else "{}_proj.bias"
        pair = [f"{theirs}.{tail.format(part)}" for part in "qv"]
        found.append(stacked(f"{ours}.qv_bias", pair, "two (a k) -> two a k", a=heads))
    elif config.qkv_bias:
        biases = [f"{name}.bias" for name in names]
        found.append(stacked(f"{ours}.qkv.bias", biases, "three e -> (three e)", three=3))
    return found


def _masked_rules(ours: str, theirs: str, heads: int) -> list[Rule]:
    """One bias of Meta's DINOv3, and the mask that switches that of the keys off."""

    def unmasked(found: Tensors) -> list[Tensor]:
        query, _, value = found[0].chunk(3)
        return [torch.stack([query, value]).unflatten(1, (heads, -1))]

    def masked(found: Tensors) -> list[Tensor]:
        query, value = found[0].flatten(1)
        bias = torch.cat([query, torch.zeros_like(query), value])
        mask = torch.ones_like(bias)
        mask[len(query) : 2 * len(query)] = 0
        return [bias, mask]

    names = (f"{theirs}.qkv.bias", f"{theirs}.qkv.bias_mask")
    return [Rule((f"{ours}.qv_bias",), names, convert=unmasked, revert=masked)]


def offset_rules(ours: list[str], theirs: str, config: ViTConfig, dialect: Dialect) -> list[Rule]:
    """A table of BEiT for one block, or for all of them."""
    grid = config.grid
    names = tuple(f"{part}.offset_bias.{name}" for part in ours for name in ("table", "prefix"))
    rule = Rule(
        names,
        (f"{theirs}.{BIAS}",),
        convert=lambda found: [*offset_table(found[0], grid)] * len(ours),
        revert=lambda found: [beit_table(found[0], found[1])],
    )
    index = [fixed(f"{theirs}.{INDEX}", lambda: beit_index(grid))] if "index" in dialect else []
    return [rule, *index]


def offset_table(theirs: Tensor, grid: Grid) -> tuple[Tensor, Tensor]:
    """Our table [A, 2h-1, 2w-1] by key minus query, and entries of prefix tokens [A, 3]."""
    body, own = theirs[:-ENTRIES], theirs[-ENTRIES:]
    by_offset = body.unflatten(0, (2 * grid[0] - 1, 2 * grid[1] - 1)).permute(2, 0, 1)
    return by_offset.flip(1, 2), own.T


def beit_table(table: Tensor, own: Tensor) -> Tensor:
    """BEiT's table [rows, A] by query minus key, the entries of prefix tokens last."""
    return torch.cat([table.flip(1, 2).permute(1, 2, 0).flatten(0, 1), own.T])


def beit_index(grid: Grid) -> Tensor:
    """Row of BEiT's table for each query and key; the class token comes first."""
    rows, columns = torch.meshgrid(*(torch.arange(side) for side in grid), indexing="ij")
    down, right = (part.flatten()[:, None] - part.flatten() for part in (rows, columns))
    inside = (down + grid[0] - 1) * (2 * grid[1] - 1) + right + grid[1] - 1
    count = (2 * grid[0] - 1) * (2 * grid[1] - 1)
    index = torch.empty(len(inside) + 1, len(inside) + 1, dtype=torch.int64)
    index[1:, 1:] = inside
    index[0, :], index[:, 0], index[0, 0] = count, count + 1, count + 2
    return index


def mlp_names(dialect: Dialect) -> tuple[str, str]:
    """First and last matrix of the MLP."""
    return next((SWIGLU[tag] for tag in SWIGLU if tag in dialect), ("fc1", "fc2"))


def _mlp_rules(ours: str, theirs: str, config: ViTConfig, dialect: Dialect) -> list[Rule]:
    """MLP of a block; the gate of a SwiGLU comes first in one matrix."""
    layer = config.norm_kind == "layer"
    norm = both(f"{ours}.norm", f"{theirs}.norm", bias=layer) if config.mlp_norm else []
    first, last = mlp_names(dialect)
    bias = config.mlp_bias
    outer = [*norm, *both(f"{ours}.fc2", f"{theirs}.{last}", bias=bias)]
    if config.mlp_activation != "swiglu":
        return [*both(f"{ours}.fc1", f"{theirs}.fc1", bias=bias), *outer]
    if first == "fc1_g":
        return [
            *both(f"{ours}.gate", f"{theirs}.fc1_g", bias=bias),
            *both(f"{ours}.fc1", f"{theirs}.fc1_x", bias=bias),
            *outer,
        ]
    kinds = {"weight": "(two f) d -> two f d", "bias": "(two f) -> two f"}
    packed = [
        split(
            [f"{ours}.{part}.{kind}" for part in ("gate", "fc1")],
            f"{theirs}.{first}.{kind}",
            pattern,
            two=2,
        )
        for kind, pattern in kinds.items()
    ]
    return [*(packed if bias else packed[:1]), *outer]


def map_rules() -> list[Rule]:
    """timm's AttentionPoolLatent; its keys and values are one matrix."""
    parts = ("pool.attention.k", "pool.attention.v")
    weights, biases = ([f"{name}.{kind}" for name in parts] for kind in ("weight", "bias"))
    return [
        same("pool.probe", "attn_pool.latent"),
        *both("pool.attention.q", "attn_pool.q"),
        split(weights, "attn_pool.kv.weight", "(two e) d -> two e d", two=2),
        split(biases, "attn_pool.kv.bias", "(two e) -> two e", two=2),
        *both("pool.attention.out", "attn_pool.proj"),
        *both("pool.norm", "attn_pool.norm"),
        *both("pool.mlp.fc1", "attn_pool.mlp.fc1"),
        *both("pool.mlp.fc2", "attn_pool.mlp.fc2"),
    ]
