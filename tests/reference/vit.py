"""The Vision Transformer (arXiv:2010.11929, section 3.1) image by image, from tensors by name.

`config` is a plain mapping of settings; nothing here comes from the package under test.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reference.attention import attend, linear, multi_head
from reference.layers import branch, layer_norm, mlp
from reference.looks import looks
from reference.positions import (
    beit_bias,
    conditional,
    learned2d,
    offset_bias,
    relative_bias,
    rotated,
    sincos2d,
)
from reference.resnet import under
from reference.stems import stem

Array = NDArray[np.float64]
Grid = tuple[int, int]
Parameters = Mapping[str, Array]
Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Answer:
    """What the model makes of a batch."""

    logits: Array
    pooled: Array
    tokens: Array
    """After the last norm."""
    layers: list[Array]
    """Tokens [B, N, D] behind each block."""
    attention: list[Array]
    """Weights [B, A, N, N] of each block."""
    grid: Grid
    """Of the patches that enter the encoder."""
    grids: list[Grid]
    """Of the patches behind each block."""


def reference_vit(state: Mapping[str, Any], config: Settings) -> Callable[[Any], Answer]:
    """The function of images [B, C, H, W] that these tensors and settings define."""
    p = {name: np.asarray(tensor, dtype=np.float64) for name, tensor in state.items()}

    def run(images: Any) -> Answer:
        each = [one_image(image, p, config) for image in np.asarray(images, dtype=np.float64)]
        depth = config["depth"]
        return Answer(
            logits=np.stack([answer.logits for answer in each]),
            pooled=np.stack([answer.pooled for answer in each]),
            tokens=np.stack([answer.tokens for answer in each]),
            layers=[np.stack([answer.layers[i] for answer in each]) for i in range(depth)],
            attention=[np.stack([answer.attention[i] for answer in each]) for i in range(depth)],
            grid=each[0].grid,
            grids=each[0].grids,
        )

    return run


def one_image(image: Array, p: Parameters, config: Settings) -> Answer:
    patches = stem(image, under(p, "stem."), config)  # [h, w, D]
    grid = (patches.shape[0], patches.shape[1])
    prefix = [*p["cls_token"][0]] if config["class_token"] else []
    prefix += [*p["registers"][0]] if config["registers"] else []
    x = np.array([*prefix, *patches.reshape(-1, patches.shape[2])])

    if config["position_at"] == "stem":
        x = placed(x, 0, p, config, grid)
    if config["embed_norm"]:
        x = layer_norm(x, p, "embed_norm", config["norm_eps"], config["norm_kind"])
    layers, attention, grids = [], [], []
    now = grid
    for layer in range(config["depth"]):
        if config["pool_after"] == layer:
            x, now = averaged(x, now, len(prefix))
        if config["position_at"] == "every_layer":
            x = placed(x, layer, p, config, now)
        elif config["position_at"] == "shared_layers":
            x = placed(x, 0, p, config, now)
        own = under(p, f"encoder.blocks.{layer}.")
        x, weights = block(x, own, {**config, "whole_grid": grid}, now, layer)
        layers.append(x)
        attention.append(weights)
        grids.append(now)

    if config["norm"] != "post" and config["norm_at"] == "tokens":
        x = layer_norm(x, p, "encoder.norm", config["norm_eps"], config["norm_kind"])
    pooled = pool(x, p, config)
    return Answer(head(pooled, p, config), pooled, x, layers, attention, grid, grids)


def averaged(x: Array, grid: Grid, prefix: int) -> tuple[Array, Grid]:
    """Each 2x2 patches as their mean, and the grid of these; tokens before the patches stay."""
    rows, columns = grid[0] // 2, grid[1] // 2
    patches = x[prefix:].reshape(*grid, -1)
    fewer = [
        sum(patches[2 * row + i, 2 * column + j] for i in (0, 1) for j in (0, 1)) / 4
        for row in range(rows)
        for column in range(columns)
    ]
    return np.array([*x[:prefix], *fewer]), (rows, columns)


def placed(x: Array, number: int, p: Parameters, config: Settings, grid: Grid) -> Array:
    """Tokens with position `number`."""
    if config["position"] != "conditional":
        return x + position_table(number, p, config, grid)
    own = under(p, f"positions.{number}.conv.")
    prefix = len(x) - grid[0] * grid[1]
    return np.array([*x[:prefix], *(x[prefix:] + conditional(x[prefix:], own, grid))])


def position_table(number: int, p: Parameters, config: Settings, grid: Grid) -> Array:
    """One row per token: zeros for a prefix token that has no entry, then the patches."""
    own = under(p, f"positions.{number}.")
    prefix = int(config["class_token"]) + config["registers"]
    table = np.zeros((prefix + grid[0] * grid[1], config["width"]))
    entries = {
        "cls": int(config["class_token"]),
        "all": prefix,
        "none": 0,
    }[config["position_prefix"]]
    if config["position"] == "learned1d":
        table[:entries] = own["table"][:entries]
        table[prefix:] = own["table"][entries:]
    elif config["position"] == "learned2d":
        table[:entries] = own["prefix"]
        table[prefix:] = learned2d(own, grid)
    elif config["position"] == "sincos2d":
        table[prefix:] = sincos2d(config["width"], grid, config["position_grid"] or grid)
    return table


def block(x: Array, p: Parameters, config: Settings, grid: Grid, layer: int) -> tuple[Array, Array]:
    """Equations 2 and 3, or the same with the norms behind the sums; and attention's weights."""
    eps, kind = config["norm_eps"], config["norm_kind"]
    attention_parameters, mlp_parameters = under(p, "attention."), under(p, "mlp.")
    bend = config["gelu"] if config["mlp_activation"] == "gelu" else config["mlp_activation"]
    if config["norm"] == "pre":
        seen = layer_norm(x, p, "norm1", eps, kind)
        y, weights = self_attention(seen, attention_parameters, config, grid, layer)
        x = x + branch(y, p, "scale1", eps)
        z = mlp(layer_norm(x, p, "norm2", eps, kind), mlp_parameters, bend, eps, kind)
        return x + branch(z, p, "scale2", eps), weights
    y, weights = self_attention(x, attention_parameters, config, grid, layer)
    if config["norm"] == "res_post":
        x = x + branch(layer_norm(y, p, "norm1", eps, kind), p, "scale1", eps)
        z = layer_norm(mlp(x, mlp_parameters, bend, eps, kind), p, "norm2", eps, kind)
        return x + branch(z, p, "scale2", eps), weights
    x = layer_norm(x + branch(y, p, "scale1", eps), p, "norm1", eps, kind)
    z = mlp(x, mlp_parameters, bend, eps, kind)
    return layer_norm(x + branch(z, p, "scale2", eps), p, "norm2", eps, kind), weights


def self_attention(
    x: Array, p: Parameters, config: Settings, grid: Grid, layer: int
) -> tuple[Array, Array]:
    heads = config["heads"]
    key = config["head_width"] or config["width"] // heads
    prefix = int(config["class_token"]) + config["registers"]
    mask = looks(
        config["attention"], grid=grid, prefix=prefix, window=config["window_size"], layer=layer
    )
    qkv = linear(x, p, "qkv")  # [N, 3*A*K], queries of all heads first
    outputs, weights = [], []
    for head_number in range(heads):
        q, k, v = (
            qkv[:, (part * heads + head_number) * key : (part * heads + head_number + 1) * key]
            for part in range(3)
        )
        if not config["key_bias"]:
            q, v = q + p["qv_bias"][0, head_number], v + p["qv_bias"][1, head_number]
        if config["qk_norm"]:
            q = layer_norm(q, p, "q_norm", config["norm_eps"], config["norm_kind"])
            k = layer_norm(k, p, "k_norm", config["norm_eps"], config["norm_kind"])
        if config["position"] == "rope" or config["rope"]:
            over = config["position_grid"] or config["whole_grid"]
            turn = turning(p, config, head_number)
            q = rotated(q, grid, over, prefix=prefix, **turn)
            k = rotated(k, grid, over, prefix=prefix, **turn)
        scale = 1 / math.sqrt(key)
        if config["attention"] == "lsa":
            scale = math.exp(p["temperature"][head_number])
        if config["attention"] == "mean":
            scale = 0.0
        bias = None
        if config["position"] == "relative":
            bias = relative_bias(q, p["offsets"], prefix=prefix, scale=scale)
        if config["position"] == "relative_bias":
            bias = offset_bias(p["offset_bias.table"][head_number], grid, prefix=prefix)
        if config["relative_table"] != "none":
            own = p["offset_bias.prefix"][head_number]
            bias = beit_bias(p["offset_bias.table"][head_number], own, grid, prefix=prefix)
        y, w = attend(q, k, v, looks=mask, bias=bias, scale=scale)
        outputs.append(y)
        weights.append(w)
    joined = np.concatenate(outputs, axis=1)
    if config["attention_norm"]:
        joined = layer_norm(joined, p, "norm", config["norm_eps"], config["norm_kind"])
    return linear(joined, p, "proj") if config["proj"] else joined, np.stack(weights)


def turning(p: Parameters, config: Settings, head: int) -> dict[str, Any]:
    """How the rotary positions of a head turn."""
    freqs = p["rope.freqs"][:, head] if config["rope_form"] == "mixed" else None
    names = ("theta", "form", "periods")
    return {**{name: config[f"rope_{name}"] for name in names}, "freqs": freqs}


def pool(x: Array, p: Parameters, config: Settings) -> Array:
    prefix = int(config["class_token"]) + config["registers"]
    if config["pool"] == "cls":
        pooled = x[0]
    elif config["pool"] == "mean":
        pooled = sum(x[prefix:]) / len(x[prefix:])
    elif config["pool"] == "mean_all":
        pooled = sum(x) / len(x)
    elif config["pool"] == "cls_mean":
        pooled = np.concatenate([x[0], x[prefix:].mean(axis=0)])
    elif config["pool"] == "cls_dist":
        pooled = np.array([*x[0], *x[1]])
    else:
        own, heads = under(p, "pool."), config["pool_heads"] or config["heads"]
        read = x[prefix:] if config["pool"] == "map_patches" else x
        y, _ = multi_head(own["probe"][0], read, under(own, "attention."), heads=heads)
        normed = layer_norm(y, own, "norm", config["norm_eps"])
        pooled = (y + mlp(normed, under(own, "mlp."), config["gelu"]))[0]
    if config["norm_at"] == "pooled":
        pooled = layer_norm(pooled, p, "pooled_norm", config["norm_eps"], config["norm_kind"])
    return pooled


def head(pooled: Array, p: Parameters, config: Settings) -> Array:
    if config["head"] == "mlp":
        pooled = np.array([math.tanh(value) for value in linear(pooled, p, "pre_logits")])
    if config["head"] == "projection":
        pooled = linear(pooled, p, "pre_logits")
    if config["unit_norm"]:
        pooled = pooled / math.sqrt(sum(pooled**2))
    if config["pool"] == "cls_dist" and config["head"] == "linear":
        return averaged_heads(pooled, p, config)
    return linear(pooled, p, "head") if config["classes"] else pooled


def averaged_heads(pooled: Array, p: Parameters, config: Settings) -> Array:
    """The mean of what two linear layers make of two tokens; without layers, of the tokens."""
    tokens = np.split(pooled, 2)
    if config["classes"]:
        weights, biases = p["head.weight"], p["head.bias"]
        tokens = [weights[:, i] @ token + biases[:, i] for i, token in enumerate(tokens)]
    return (tokens[0] + tokens[1]) / 2
