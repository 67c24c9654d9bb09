"""Explanations by their definitions: a ViT restated in plain torch, whose insides keep gradients.

`config` is a plain mapping of settings; nothing here comes from the package under test.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reference.looks import looks
from reference.positions import offset_bias, rotated
from reference.vit import position_table

Grid = tuple[int, int]
Settings = Mapping[str, Any]
State = Mapping[str, Tensor]


@dataclass
class Insides:
    """One run of the model; every tensor is part of the graph of the logits."""

    logits: Tensor
    attention: list[Tensor]
    """[B, A, N, N] of each block."""
    read: list[Tensor]
    """[B, N, D]: what the attention of each block reads."""
    tokens: Tensor
    """What the pooling reads."""
    probe: Tensor | None
    """[B, A, N]: where the probe of an attention pooling looks."""
    grid: Grid
    prefix: int
    pooled: Tensor
    """[M, N] for each image: the means that tokens behind the pooling are of those before it."""
    pool_after: int | None
    grids: list[Grid]
    """Of each block."""


def insides(
    state: State, config: Settings, images: Tensor, stem: Callable[[Tensor], Tensor]
) -> Insides:
    """Run images [B, C, H, W] through the tensors; `stem` gives patches [B, h, w, D]."""
    patches = stem(images)
    grid = (patches.shape[1], patches.shape[2])
    batch, prefix = len(images), int(config["class_token"]) + config["registers"]
    parts = [patches.flatten(1, 2)]
    if config["registers"]:
        parts.insert(0, state["registers"].expand(batch, -1, -1))
    if config["class_token"]:
        parts.insert(0, state["cls_token"].expand(batch, -1, -1))
    x = torch.cat(parts, dim=1)
    if config["position_at"] == "stem":
        x = placed(x, 0, state, config, grid)
    attention, read, grids = [], [], []
    settings, now, means = {**config, "whole_grid": grid}, grid, averages(grid, prefix)
    for layer in range(config["depth"]):
        if config["pool_after"] == layer:
            x, now = torch.einsum("mn,bnd->bmd", means, x), (grid[0] // 2, grid[1] // 2)
        if config["position_at"] != "stem":
            x = placed(
                x, layer if config["position_at"] == "every_layer" else 0, state, config, now
            )
        x, weights, seen = block(x, under(state, f"encoder.blocks.{layer}."), settings, now, layer)
        attention.append(weights)
        read.append(seen)
        grids.append(now)
    if config["norm"] == "pre" and config["norm_at"] == "tokens":
        x = norm(x, state, "encoder.norm", config["norm_eps"])
    pooled, probe = pool(x, state, config, prefix)
    if config["norm_at"] == "pooled":
        pooled = norm(pooled, state, "pooled_norm", config["norm_eps"])
    if config["head"] == "mlp":
        pooled = torch.tanh(linear(pooled, state, "pre_logits"))
    logits = linear(pooled, state, "head") if config["classes"] else pooled
    return Insides(
        logits, attention, read, x, probe, grid, prefix, means, config["pool_after"], grids
    )


def averages(grid: Grid, prefix: int) -> Tensor:
    """[M, N]: each 2x2 patches averaged, tokens before them as they are; nothing of odd grids."""
    rows, columns = grid[0] // 2, grid[1] // 2
    means = torch.zeros(prefix + rows * columns, prefix + grid[0] * grid[1], dtype=torch.float64)
    for token in range(prefix):
        means[token, token] = 1.0
    for row in range(2 * rows):
        for column in range(2 * columns):
            place = prefix + row // 2 * columns + column // 2
            means[place, prefix + row * grid[1] + column] = 0.25
    return means


def placed(x: Tensor, number: int, state: State, config: Settings, grid: Grid) -> Tensor:
    """Tokens with position `number`: a table, or a convolution of the patches themselves."""
    if config["position"] != "conditional":
        arrays = {name: tensor.numpy() for name, tensor in state.items()}
        return x + torch.from_numpy(position_table(number, arrays, config, grid))
    p, (rows, columns) = under(state, f"positions.{number}.conv."), grid
    prefix = x.shape[1] - rows * columns
    patches = x[:, prefix:].unflatten(1, grid)
    framed = torch.nn.functional.pad(patches, (0, 0, 1, 1, 1, 1))
    total = patches + p["bias"]
    for y in range(3):
        for across in range(3):
            moved = framed[:, y : y + rows, across : across + columns]
            total = total + p["weight"][:, 0, y, across] * moved
    return torch.cat([x[:, :prefix], total.flatten(1, 2)], dim=1)


def block(
    x: Tensor, p: State, config: Settings, grid: Grid, layer: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The output, the weights, and what attention read."""
    eps, before = config["norm_eps"], config["norm"] == "pre"
    seen = norm(x, p, "norm1", eps) if before else x
    y, weights = self_attention(seen, under(p, "attention."), config, grid, layer)
    x = x + branch(y, p, "scale1", eps)
    x = x if before else norm(x, p, "norm1", eps)
    z = mlp(norm(x, p, "norm2", eps) if before else x, under(p, "mlp."), config)
    x = x + branch(z, p, "scale2", eps)
    return x if before else norm(x, p, "norm2", eps), weights, seen


def branch(y: Tensor, p: State, name: str, eps: float) -> Tensor:
    """What a branch adds: as it is, by LayerScale's factors, or behind a LayerNorm."""
    if f"{name}.weight" in p:
        return norm(y, p, name, eps)
    return y * p.get(f"{name}.gamma", 1.0)


def self_attention(
    x: Tensor, p: State, config: Settings, grid: Grid, layer: int
) -> tuple[Tensor, Tensor]:
    heads, prefix = config["heads"], int(config["class_token"]) + config["registers"]
    key = config["head_width"] or config["width"] // heads
    window, kind = config["window_size"], config["attention"]
    mask = looks(kind, grid=grid, prefix=prefix, window=window, layer=layer)
    qkv = linear(x, p, "qkv")
    tokens = x.shape[1]
    outputs, weights = [], []
    for head in range(heads):
        q, k, v = (
            qkv[..., (part * heads + head) * key : (part * heads + head + 1) * key]
            for part in range(3)
        )
        if config["qk_norm"]:
            q, k = (
                norm(q, p, "q_norm", config["norm_eps"]),
                norm(k, p, "k_norm", config["norm_eps"]),
            )
        if config["position"] == "rope":
            turn = turns(tokens, key, grid, prefix, config)
            q, k = (torch.einsum("nij,bnj->bni", turn, part) for part in (q, k))
        scale = p["temperature"][head].exp() if kind == "lsa" else key**-0.5
        scores = scale * torch.einsum("bmk,bnk->bmn", q, k)
        if config["position"] == "relative":
            scores = scores + scale * relative(q, p["offsets"], prefix)
        if config["position"] == "relative_bias":
            table = p["offset_bias.table"][head].numpy()
            scores = scores + torch.from_numpy(offset_bias(table, grid, prefix=prefix))
        # The softmax by hand: powers of those that are seen, divided by their sum.
        powers = torch.exp(scores - scores.detach().amax(dim=-1, keepdim=True))
        if mask is not None:
            powers = powers * torch.from_numpy(mask)
        weights.append(powers / powers.sum(dim=-1, keepdim=True))
        outputs.append((weights[-1], v))
    # Stacked before they are used, so that the stack itself is in the graph.
    stacked = torch.stack(weights, dim=1)
    mixed = [
        torch.einsum("bmn,bnk->bmk", stacked[:, head], v) for head, (_, v) in enumerate(outputs)
    ]
    joined = torch.cat(mixed, dim=-1)
    return linear(joined, p, "proj") if config["proj"] else joined, stacked


def turns(tokens: int, key: int, grid: Grid, prefix: int, config: Settings) -> Tensor:
    """[N, K, K]: the rotation of each token as a matrix."""
    over, theta = config["position_grid"] or config["whole_grid"], config["rope_theta"]
    columns = [
        rotated(np.tile(unit, (tokens, 1)), grid, over, prefix=prefix, theta=theta)
        for unit in np.eye(key)
    ]
    return torch.from_numpy(np.stack(columns, axis=2))


def relative(q: Tensor, offsets: Tensor, prefix: int) -> Tensor:
    """[B, N, N]: each query against the embedding of the offset to each key."""
    tokens, middle = q.shape[1], len(offsets) // 2
    index = torch.full((tokens, tokens), middle)
    for m in range(prefix, tokens):
        for n in range(prefix, tokens):
            index[m, n] = middle + m - n
    return torch.einsum("bmk,mnk->bmn", q, offsets[index])


def pool(x: Tensor, state: State, config: Settings, prefix: int) -> tuple[Tensor, Tensor | None]:
    if config["pool"] == "cls":
        return x[:, 0], None
    if config["pool"] != "map":
        return x[:, 0 if config["pool"] == "mean_all" else prefix :].mean(dim=1), None
    p, heads = under(state, "pool."), config["heads"]
    q, k, v = (
        linear(part, p, f"attention.{name}").unflatten(-1, (heads, -1)).transpose(1, 2)
        for part, name in ((p["probe"].expand(len(x), -1, -1), "q"), (x, "k"), (x, "v"))
    )
    scores = (q * k).sum(dim=-1) * q.shape[-1] ** -0.5  # [B, A, N]
    powers = torch.exp(scores)
    weights = powers / powers.sum(dim=-1, keepdim=True)
    mixed = (weights[..., None] * v).sum(dim=2)  # [B, A, K]
    y = linear(mixed.flatten(1), p, "attention.out")
    return y + mlp(norm(y, p, "norm", config["norm_eps"]), under(p, "mlp."), config), weights


def plain_stem(state: State, config: Settings) -> Callable[[Tensor], Tensor]:
    """Patches cut out one by one and projected."""
    height, width = config["patch_size"]

    def stem(images: Tensor) -> Tensor:
        rows, columns = images.shape[2] // height, images.shape[3] // width
        cut = [
            [
                images[:, :, y * height : (y + 1) * height, x * width : (x + 1) * width].flatten(1)
                for x in range(columns)
            ]
            for y in range(rows)
        ]
        flat = torch.stack([torch.stack(row, dim=1) for row in cut], dim=1)  # [B, h, w, F]
        return flat @ state["stem.proj.weight"].flatten(1).T + state["stem.proj.bias"]

    return stem


def asked(found: Insides, config: Settings, tokens: int | None = None) -> Tensor:
    """[B, N]: the tokens that the head reads, as a distribution; without attention pooling."""
    batch, last, _ = found.tokens.shape
    row = torch.zeros(batch, last if tokens is None else tokens, dtype=torch.float64)
    first = {"cls": slice(0, 1), "mean": slice(found.prefix, None), "mean_all": slice(None)}
    row[:, first[config["pool"]]] = 1.0
    return row / row.sum(dim=1, keepdim=True)


def rollout(found: Insides, query: Tensor) -> Tensor:
    """arXiv:2005.00928, with whole matrices: heads averaged, identity added, rows to sum one."""
    product = identity(found.attention[0]).expand(len(query), -1, -1)
    for layer, weights in enumerate(found.attention):
        step = weights.mean(dim=1) + identity(weights)
        product = found.pooled @ product if layer == found.pool_after else product
        product = (step / step.sum(dim=-1, keepdim=True)) @ product
    return torch.einsum("bm,bmn->bn", query, product)


def relevance(found: Insides, config: Settings, target: Tensor) -> Tensor:
    """arXiv:2103.15679, equations 5 and 6, with whole matrices: R from the first block on."""
    score = found.logits.gather(1, target[:, None]).sum()
    nodes = found.attention if found.probe is None else [*found.attention, found.probe]
    gradients = torch.autograd.grad(score, nodes, retain_graph=True, allow_unused=False)
    matrix = identity(found.attention[0]).expand(len(target), -1, -1)
    for layer, (weights, gradient) in enumerate(zip(found.attention, gradients, strict=False)):
        matrix = found.pooled @ matrix if layer == found.pool_after else matrix
        matrix = matrix + (weights * gradient).clamp(min=0).mean(dim=1) @ matrix
    query = (
        asked(found, config)
        if found.probe is None
        else ((found.probe * gradients[-1]).clamp(min=0).mean(dim=1))
    )
    return torch.einsum("bm,bmn->bn", query, matrix)


def identity(weights: Tensor) -> Tensor:
    return torch.eye(weights.shape[-1], dtype=torch.float64)


def gradcam(found: Insides, node: Tensor, target: Tensor) -> Tensor:
    """arXiv:1610.02391, equations 1 and 2: alpha is the mean gradient, the map a rectified sum."""
    score = found.logits.gather(1, target[:, None]).sum()
    (gradient,) = torch.autograd.grad(score, node, retain_graph=True)
    patches, slopes = node[:, found.prefix :], gradient[:, found.prefix :]
    alpha = slopes.sum(dim=1) / slopes.shape[1]
    return torch.relu(torch.einsum("bd,bpd->bp", alpha, patches))


def linear(x: Tensor, p: State, name: str) -> Tensor:
    y = x @ p[f"{name}.weight"].T
    return y + p[f"{name}.bias"] if f"{name}.bias" in p else y


def norm(x: Tensor, p: State, name: str, eps: float) -> Tensor:
    centred = x - x.mean(dim=-1, keepdim=True)
    variance = (centred**2).mean(dim=-1, keepdim=True)
    scaled = centred / (variance + eps).sqrt() * p[f"{name}.weight"]
    return scaled + p[f"{name}.bias"] if f"{name}.bias" in p else scaled


def mlp(x: Tensor, p: State, config: Settings) -> Tensor:
    hidden = linear(x, p, "fc1")
    if config["mlp_activation"] == "relu2":
        return linear(torch.relu(hidden) ** 2, p, "fc2")
    assert config["gelu"] == "erf"
    return linear(hidden * 0.5 * (1 + torch.erf(hidden / 2**0.5)), p, "fc2")


def under(state: State, start: str) -> dict[str, Tensor]:
    return {name[len(start) :]: part for name, part in state.items() if name.startswith(start)}
