"""Step-by-step computation of one head of one block (arXiv:2010.11929, appendix A), in float64.

Every step of the attention is recomputed here from the parameters; the model's own output is kept
beside the result, so that the steps can be shown to be the model's.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from einops import rearrange
from jaxtyping import Bool, Float
from torch import Tensor, nn

from vitlab.errors import InputError, Lacks
from vitlab.explain.trace import Visit, visiting
from vitlab.models.vit import VisionTransformer, layer_number
from vitlab.nn.attention import SelfAttention
from vitlab.nn.encoder import Grid, LayerScale
from vitlab.nn.lora import LoraLinear
from vitlab.nn.patch_embed import PatchEmbed, ShiftedPatchEmbed, flatten_patches, with_shifts
from vitlab.nn.pattern import pattern_mask
from vitlab.nn.pos_embed import Conditional, offset_index
from vitlab.nn.resize import resize_offsets
from vitlab.nn.stem import HybridEmbed

CPU = torch.device("cpu")


@dataclass(frozen=True, kw_only=True, eq=False)
class Linear:
    """x Wᵀ + b."""

    weight: Float[Tensor, "O I"]
    bias: Float[Tensor, " O"] | None

    def __call__(self, x: Float[Tensor, "N I"]) -> Float[Tensor, "N O"]:
        y = x @ self.weight.T
        return y if self.bias is None else y + self.bias


@dataclass(frozen=True, kw_only=True, eq=False)
class Embedded:
    """From pixels to the tokens that enter the encoder."""

    image: Float[Tensor, "C H W"]
    """Image as model input."""
    grid: Grid
    flat: Float[Tensor, "P F"] | None
    """Each patch as one vector; None if a network of convolutions makes the tokens."""
    projection: Linear | None
    """From a flat patch to a token; None likewise."""
    patches: Float[Tensor, "P D"]
    """Output of the stem, including its norms."""
    prefix: Float[Tensor, "R D"]
    """Class token and registers."""
    positions: Float[Tensor, "N D"] | None
    """Positions added here, by a table or a convolution; None if absent or added in blocks."""
    tokens: Float[Tensor, "N D"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Head:
    """One head applied to all tokens; steps that a model does not have are None."""

    to_q: Linear
    to_k: Linear
    to_v: Linear
    q: Float[Tensor, "N K"]
    k: Float[Tensor, "N K"]
    v: Float[Tensor, "N K"]
    normed: tuple[Float[Tensor, "N K"], Float[Tensor, "N K"]] | None
    """Queries and keys after their own LayerNorm."""
    turned: tuple[Float[Tensor, "N K"], Float[Tensor, "N K"]] | None
    """Queries and keys rotated by their position."""
    scale: float
    """1 / √K, or the learned temperature of the head."""
    products: Float[Tensor, "N N"]
    """Products of every query with every key."""
    offsets: Float[Tensor, "N N"] | None
    """Contribution of relative positions to the scores, already scaled."""
    looks: Bool[Tensor, "N N"] | None
    """True where a query may attend; None: everywhere."""
    scores: Float[Tensor, "N N"]
    """Input of the softmax; minus infinity where masked."""
    weights: Float[Tensor, "N N"]
    output: Float[Tensor, "N K"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Walkthrough:
    """All steps from the image to the contribution of one block's attention to the tokens."""

    embedded: Embedded
    layer: int
    grid: Grid
    """Grid of this block."""
    prefix: int
    layer_positions: Float[Tensor, "N D"] | None
    """Positions added to the input of this block only."""
    entering: Float[Tensor, "N D"]
    """Tokens that enter the block, `layer_positions` added."""
    read: Float[Tensor, "N D"]
    """Input of the heads: the tokens, after a LayerNorm if the block has one before attention."""
    norm_first: bool
    number: int
    head: Head
    """The head that is followed."""
    all_weights: Float[Tensor, "A N"]
    """Attention weights of the query in every head."""
    query: int
    """Index of the token that is followed."""
    joined: Float[Tensor, "N AK"]
    """Concatenated outputs of all heads."""
    projection: Linear | None
    projected: Float[Tensor, "N D"]
    gamma: Float[Tensor, " D"] | None
    """LayerScale's factor on the attention output."""
    branch_norm: bool
    """True if the attention output has its own LayerNorm."""
    leaving: Float[Tensor, "N D"]
    """Tokens with the attention output added."""
    own: Float[Tensor, "N D"]
    """Output of the model's own attention, to compare with `projected`."""

    @property
    def difference(self) -> float:
        """Largest difference between these steps and the model's own, relative to its size."""
        largest = float(self.own.abs().max())
        return float((self.projected - self.own).abs().max()) / (largest or 1.0)


def walk_through(
    model: nn.Module,
    image: Float[Tensor, "C H W"],
    *,
    layer: int = 0,
    head: int = 0,
    token: tuple[int, int] | None = None,
) -> Walkthrough:
    """Follow the patch at row and column `token` (None: the central one) through one head."""
    if not isinstance(model, VisionTransformer):
        raise Lacks(f"a {type(model).__name__} has no heads to follow; valid: a Vision Transformer")
    number = layer_number(layer, model.config.depth)
    attention = model.encoder.blocks[number].attention
    if not isinstance(attention, SelfAttention):
        name = type(attention).__name__
        raise Lacks(f"{name} is an attention of your own; valid: a kind that vitlab has")
    if not -attention.heads <= head < attention.heads:
        last = attention.heads - 1
        raise InputError(f"head {head} does not exist; valid: {-attention.heads} to {last}")
    visits: list[Visit] = []
    image = image.to(next(model.parameters()).device)
    with torch.inference_mode(), visiting(model, visits.append), _added(model) as added:
        model.features(image[None])
    visit = visits[number]
    query = model.config.prefix + _place(token, visit.grid)
    at_stem = model.config.position_at == "stem"
    embedded = _embed(model, image, added[0] if added and at_stem else None)
    own = None if at_stem else added[number] if added else _layer_table(model, visit)
    return _follow(model, visit, embedded, own, head % attention.heads, query)


@contextmanager
def _added(model: VisionTransformer) -> Iterator[list[Float[Tensor, "N D"]]]:
    """Positions that a conditional module adds to the tokens of one image, call by call."""
    found: list[Tensor] = []

    def keep(_: Any, given: tuple[Any, ...], result: Tensor) -> None:
        found.append(_double(result[0]) - _double(given[0][0]))

    parts = [part for part in model.positions if isinstance(part, Conditional)]
    hooks = [part.register_forward_hook(keep) for part in parts]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


def _place(token: tuple[int, int] | None, grid: Grid) -> int:
    row, column = (grid[0] // 2, grid[1] // 2) if token is None else token
    if not (0 <= row < grid[0] and 0 <= column < grid[1]):
        raise InputError(
            f"token {row},{column} is not in the grid; valid: row 0 to {grid[0] - 1}, "
            f"column 0 to {grid[1] - 1}"
        )
    return row * grid[1] + column


@torch.inference_mode()
def _embed(
    model: VisionTransformer, image: Float[Tensor, "C H W"], added: Float[Tensor, "N D"] | None
) -> Embedded:
    """`added` is the output of a position without a table."""
    images, stem = image[None], model.stem
    made = model.stem(images)[0]  # [h, w, D]
    grid = (made.shape[0], made.shape[1])
    flat, projection = None, None
    if isinstance(stem, PatchEmbed) and not isinstance(stem, HybridEmbed):
        shifted = isinstance(stem, ShiftedPatchEmbed)
        read = with_shifts(images, stem.patch_size) if shifted else images
        flat = _double(flatten_patches(read, stem.patch_size)[0].flatten(0, 1))
        projection = _linear(stem.proj.weight.flatten(1), stem.proj.bias)
        if stem.norm_before is not None:
            flat = _layer_norm(flat, stem.norm_before)
    prefix = [part[0] for part in (model.cls_token, model.registers) if part is not None]
    before = _double(torch.cat(prefix)) if prefix else torch.zeros(0, made.shape[2]).double()
    patches = _double(made.flatten(0, 1))
    tokens, positions = torch.cat([before, patches]), added
    if added is None and model.config.position_at == "stem" and len(model.positions):
        positions = _with_prefix(model.positions[0](grid), grid, len(before))
    return Embedded(
        image=image.cpu(),
        grid=grid,
        flat=flat,
        projection=projection,
        patches=patches,
        prefix=before,
        positions=positions,
        tokens=tokens if positions is None else tokens + positions,
    )


@torch.inference_mode()
def _follow(
    model: VisionTransformer,
    visit: Visit,
    embedded: Embedded,
    layer_positions: Float[Tensor, "N D"] | None,
    head: int,
    query: int,
) -> Walkthrough:
    block, attention = visit.block, visit.block.attention
    assert isinstance(attention, SelfAttention)
    entering = _double(visit.entering[0])
    read = _layer_norm(entering, block.norm1) if block.norm_first else entering
    own_input = block.norm1(visit.entering) if block.norm_first else visit.entering
    followed: Head | None = None
    rows, outputs = [], []
    for number in range(attention.heads):
        found = _one_head(attention, read, number, visit.grid)
        rows.append(found.weights[query])
        outputs.append(found.output)
        followed = found if number == head else followed
    assert followed is not None
    joined = torch.cat(outputs, dim=1)
    proj = attention.proj
    projection = _linear(*_merged(proj)) if isinstance(proj, nn.Linear) else None
    projected = joined if projection is None else projection(joined)
    gamma, added = None, projected
    if isinstance(block.scale1, LayerScale):
        gamma = _double(block.scale1.gamma)
        added = gamma * projected
    elif isinstance(block.scale1, nn.LayerNorm):
        added = _layer_norm(projected, block.scale1)
    return Walkthrough(
        embedded=embedded,
        layer=visit.layer,
        grid=visit.grid,
        prefix=model.config.prefix,
        layer_positions=layer_positions,
        entering=entering,
        read=read,
        norm_first=block.norm_first,
        number=head,
        head=followed,
        all_weights=torch.stack(rows),
        query=query,
        joined=joined,
        projection=projection,
        projected=projected,
        gamma=gamma,
        branch_norm=isinstance(block.scale1, nn.LayerNorm),
        leaving=entering + added,
        own=_double(attention(own_input, visit.grid)[0]),
    )


def _one_head(
    attention: SelfAttention, read: Float[Tensor, "N D"], number: int, grid: Grid
) -> Head:
    layers = _split(attention, number)
    q, k, v = (layer(read) for layer in layers)
    asked, offered, normed, turned = q, k, None, None
    if isinstance(attention.q_norm, nn.LayerNorm) and isinstance(attention.k_norm, nn.LayerNorm):
        normed = _layer_norm(q, attention.q_norm), _layer_norm(k, attention.k_norm)
        asked, offered = normed
    if attention.rope is not None:
        turned = _turned(attention, asked, grid), _turned(attention, offered, grid)
        asked, offered = turned
    scale = q.shape[1] ** -0.5
    if attention.temperature is not None:
        scale = float(attention.temperature[number].cpu().double().exp())
    products = asked @ offered.T
    offsets = _offset_scores(attention, asked, number, scale, grid)
    scores = products * scale if offsets is None else products * scale + offsets
    looks = None
    if attention.pattern is not None:
        looks = pattern_mask(attention.pattern, grid, attention.prefix, CPU)
        scores = scores.masked_fill(~looks, -torch.inf)
    weights = scores.softmax(dim=1)
    return Head(
        to_q=layers[0],
        to_k=layers[1],
        to_v=layers[2],
        q=q,
        k=k,
        v=v,
        normed=normed,
        turned=turned,
        scale=scale,
        products=products,
        offsets=offsets,
        looks=looks,
        scores=scores,
        weights=weights,
        output=weights @ v,
    )


def _split(attention: SelfAttention, number: int) -> tuple[Linear, Linear, Linear]:
    """Rows of the fused matrix for the queries, keys and values of a head."""
    weight, bias = _merged(attention.qkv)
    weights = rearrange(weight, "(p a k) d -> p a k d", p=3, a=attention.heads)[:, number]
    biases: Any = [None] * 3
    if bias is not None:
        biases = rearrange(bias, "(p a k) -> p a k", p=3, a=attention.heads)[:, number]
    q, k, v = (_linear(weight, bias) for weight, bias in zip(weights, biases, strict=True))
    return q, k, v


def _turned(attention: SelfAttention, x: Float[Tensor, "N K"], grid: Grid) -> Float[Tensor, "N K"]:
    assert attention.rope is not None
    return attention.rope(x[None, None], grid, attention.prefix)[0, 0]


def _offset_scores(
    attention: SelfAttention, q: Float[Tensor, "N K"], number: int, scale: float, grid: Grid
) -> Float[Tensor, "N N"] | None:
    if attention.offset_bias is not None:
        return _double(attention.offset_bias(grid, attention.prefix)[number])
    if attention.offsets is None:
        return None
    patches = grid[0] * grid[1]
    table = resize_offsets(_double(attention.offsets), patches)
    by_offset = scale * q @ table.T  # [N, O]
    return by_offset.gather(1, offset_index(patches, attention.prefix, CPU))


def _layer_table(model: VisionTransformer, visit: Visit) -> Float[Tensor, "N D"] | None:
    if not len(model.positions):
        return None
    own = visit.layer if model.config.position_at == "every_layer" else 0
    return _with_prefix(model.positions[own](visit.grid), visit.grid, model.config.prefix)


def _with_prefix(table: Tensor, grid: Grid, prefix: int) -> Float[Tensor, "N D"]:
    """Table with zeros for prefix tokens without an entry; those with one come first."""
    table = _double(table)
    entries = len(table) - grid[0] * grid[1]
    zeros = table.new_zeros(prefix - entries, table.shape[1])
    return torch.cat([table[:entries], zeros, table[entries:]])


def _layer_norm(x: Float[Tensor, "N D"], norm: nn.LayerNorm) -> Float[Tensor, "N D"]:
    """Each row minus its mean, over its deviation, times a gain, plus a bias if it has one."""
    centred = x - x.mean(dim=1, keepdim=True)
    variance = centred.square().mean(dim=1, keepdim=True)
    scaled = centred / (variance + norm.eps).sqrt() * _double(norm.weight)
    return scaled if norm.bias is None else scaled + _double(norm.bias)


def _merged(layer: nn.Linear) -> tuple[Tensor, Tensor | None]:
    """Effective weight and bias of a layer, including a low-rank update."""
    plain = layer.merged() if isinstance(layer, LoraLinear) else layer
    return plain.weight, plain.bias


def _linear(weight: Tensor, bias: Tensor | None) -> Linear:
    return Linear(weight=_double(weight), bias=None if bias is None else _double(bias))


def _double(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().double()
