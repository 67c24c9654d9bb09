"""Token merging by its definition (arXiv:2210.09461, section 3), image by image and token by token.

A token knows which patches it stands for. Where it must count as often as it has patches, it is
written down as often: nothing here knows of logarithms or weights.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from reference.attention import attend, linear
from reference.layers import branch, layer_norm, mlp
from reference.positions import rope_places, turned
from reference.resnet import under
from reference.stems import stem
from reference.vit import (
    Array,
    Grid,
    Parameters,
    Settings,
    averaged,
    block,
    head,
    placed,
    pool,
    turning,
)
from reference.vit import position_table as table_of


@dataclass(frozen=True)
class Token:
    vector: Array
    patches: tuple[int, ...] = ()
    """Numbers of the patches that it stands for; none for a token before the patches."""

    @property
    def times(self) -> int:
        return max(1, len(self.patches))


@dataclass(frozen=True)
class Answer:
    logits: Array
    patches: list[tuple[int, ...]]
    """What each token behind the prefix stands for after the last block that merges."""


def merging_vit(
    state: Mapping[str, Any], config: Settings, count: int
) -> Callable[[Any], list[Answer]]:
    """The function of images that these tensors define where `count` tokens go in each block."""
    p = {name: np.asarray(tensor, dtype=np.float64) for name, tensor in state.items()}
    return lambda images: [
        one_image(image, p, config, count) for image in np.asarray(images, dtype=np.float64)
    ]


def one_image(image: Array, p: Parameters, config: Settings, count: int) -> Answer:
    patches = stem(image, under(p, "stem."), config)
    grid: Grid = (patches.shape[0], patches.shape[1])
    whole = {**config, "whole_grid": grid}
    prefix = [*p["cls_token"][0]] if config["class_token"] else []
    prefix += [*p["registers"][0]] if config["registers"] else []
    x = np.array([*prefix, *patches.reshape(-1, patches.shape[2])])
    if config["position_at"] == "stem":
        x = placed(x, 0, p, config, grid)
    if config["embed_norm"]:
        x = layer_norm(x, p, "embed_norm", config["norm_eps"], config["norm_kind"])
    first = config["pool_after"] or 0
    for layer in range(first):  # blocks before a coarser grid do not merge
        x, _ = block(x, under(p, f"encoder.blocks.{layer}."), whole, grid, layer)
    if first:
        x, grid = averaged(x, grid, len(prefix))
    tokens = [
        Token(vector, () if number < len(prefix) else (number - len(prefix),))
        for number, vector in enumerate(x)
    ]
    for layer in range(first, config["depth"]):
        if config["position_at"] != "stem":
            number = layer if config["position_at"] == "every_layer" else 0
            tokens = with_positions(tokens, table_of(number, p, config, grid), len(prefix))
        own = under(p, f"encoder.blocks.{layer}.")
        tokens = merging_block(tokens, own, whole, grid, len(prefix), count)
    if config["norm"] != "post" and config["norm_at"] == "tokens":
        tokens = [
            replace(
                t,
                vector=layer_norm(
                    t.vector, p, "encoder.norm", config["norm_eps"], config["norm_kind"]
                ),
            )
            for t in tokens
        ]
    written = np.array([t.vector for t in tokens for _ in range(t.times)])
    pooled = pool(written, p, config)
    return Answer(head(pooled, p, config), [t.patches for t in tokens[len(prefix) :]])


def with_positions(tokens: list[Token], table: Array, prefix: int) -> list[Token]:
    rows = [
        np.mean([table[prefix + number] for number in t.patches], axis=0) if t.patches else table[i]
        for i, t in enumerate(tokens)
    ]
    return [replace(t, vector=t.vector + row) for t, row in zip(tokens, rows, strict=True)]


def merging_block(
    tokens: list[Token], p: Parameters, config: Settings, grid: Grid, prefix: int, count: int
) -> list[Token]:
    eps, place, kind = config["norm_eps"], config["norm"], config["norm_kind"]
    bend = config["gelu"] if config["mlp_activation"] == "gelu" else config["mlp_activation"]
    x = np.array([t.vector for t in tokens])
    seen = layer_norm(x, p, "norm1", eps, kind) if place == "pre" else x
    y, keys = attention(tokens, seen, under(p, "attention."), config, grid)
    y = layer_norm(y, p, "norm1", eps, kind) if place == "res_post" else y
    x = x + branch(y, p, "scale1", eps)
    x = layer_norm(x, p, "norm1", eps, kind) if place == "post" else x
    tokens = [replace(t, vector=vector) for t, vector in zip(tokens, x, strict=True)]
    tokens = [*tokens[:prefix], *merge(tokens[prefix:], keys[prefix:], count)]
    x = np.array([t.vector for t in tokens])
    seen = layer_norm(x, p, "norm2", eps, kind) if place == "pre" else x
    z = mlp(seen, under(p, "mlp."), bend, eps, kind)
    z = layer_norm(z, p, "norm2", eps, kind) if place == "res_post" else z
    x = x + branch(z, p, "scale2", eps)
    x = layer_norm(x, p, "norm2", eps, kind) if place == "post" else x
    return [replace(t, vector=vector) for t, vector in zip(tokens, x, strict=True)]


def attention(
    tokens: list[Token], x: Array, p: Parameters, config: Settings, grid: Grid
) -> tuple[Array, Array]:
    """What every token reads, each key and value written down for each patch; and mean keys."""
    heads = config["heads"]
    key = config["head_width"] or config["width"] // heads
    qkv = linear(x, p, "qkv")
    written = [i for i, t in enumerate(tokens) for _ in range(t.times)]
    outputs, keys = [], []
    for number in range(heads):
        q, k, v = (
            qkv[:, (part * heads + number) * key : (part * heads + number + 1) * key]
            for part in range(3)
        )
        if not config["key_bias"]:
            q, v = q + p["qv_bias"][0, number], v + p["qv_bias"][1, number]
        if config["qk_norm"]:
            q = layer_norm(q, p, "q_norm", config["norm_eps"], config["norm_kind"])
            k = layer_norm(k, p, "k_norm", config["norm_eps"], config["norm_kind"])
        if config["position"] == "rope" or config["rope"]:
            turn = turning(p, config, number)
            q, k = (rotate(tokens, part, config, grid, turn) for part in (q, k))
        y, _ = attend(q, k[written], v[written], looks=None, bias=None, scale=1 / math.sqrt(key))
        outputs.append(y)
        keys.append(k)
    joined = np.concatenate(outputs, axis=1)
    if config["attention_norm"]:
        joined = layer_norm(joined, p, "norm", config["norm_eps"], config["norm_kind"])
    return linear(joined, p, "proj") if config["proj"] else joined, sum(keys) / heads


def rotate(
    tokens: list[Token], vectors: Array, config: Settings, grid: Grid, turn: Mapping[str, Any]
) -> Array:
    """Each by the mean place of its patches."""
    over, form = config["position_grid"] or config["whole_grid"], config["rope_form"]
    where = np.array(rope_places(grid, over, form))
    return np.array(
        [
            turned(v, where[list(t.patches)].mean(axis=0), **turn) if t.patches else v
            for t, v in zip(tokens, vectors, strict=True)
        ]
    )


def merge(tokens: list[Token], keys: Array, count: int) -> list[Token]:
    """Tokens 1, 3, 5, … may go, each into the likeliest of 0, 2, 4, …; the likeliest `count` do.

    Cosines count in steps of 2**-14; of equals the first comes first.
    """
    goers, targets = range(1, len(tokens), 2), range(0, len(tokens), 2)

    def likeness(i: int, j: int) -> int:
        cosine = keys[i] @ keys[j] / math.sqrt(keys[i] @ keys[i] * (keys[j] @ keys[j]))
        return round(2**14 * cosine)

    nearest = {i: max(targets, key=lambda j: likeness(i, j)) for i in goers}
    order = sorted(goers, key=lambda i: -likeness(i, nearest[i]))
    gone = order[:count]
    together = {j: [tokens[j], *(tokens[i] for i in gone if nearest[i] == j)] for j in targets}
    return [tokens[i] for i in goers if i not in gone] + [joined(together[j]) for j in targets]


def joined(tokens: list[Token]) -> Token:
    """One token for all: the mean, in which each counts as often as it has patches."""
    total = sum(t.times for t in tokens)
    vector = sum(t.times * t.vector for t in tokens) / total
    return Token(np.asarray(vector), tuple(number for t in tokens for number in t.patches))
