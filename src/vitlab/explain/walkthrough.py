"""One image through one head, its block and the classifier (arXiv:2010.11929), in float64.

Every step is recomputed here from the parameters; the model's own outputs are kept beside the
results, so that the steps can be shown to be the model's.
"""

from dataclasses import dataclass
from typing import Any

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from vitlab.errors import InputError, Unsupported
from vitlab.explain.readout import Readout, read_out
from vitlab.explain.steps import (
    Linear,
    MlpSteps,
    branch,
    double,
    follow_mlp,
    layer_norm,
    linear_of,
    merged,
)
from vitlab.explain.trace import Visit, visiting
from vitlab.models.config import ViTConfig
from vitlab.models.vit import VisionTransformer, layer_number
from vitlab.nn.attention import SelfAttention
from vitlab.nn.attention_variants import VariantAttention
from vitlab.nn.encoder import Grid, LayerScale
from vitlab.nn.patch_embed import HybridEmbed, PatchEmbed, flatten_patches

KINDS: dict[str, tuple[Any, ...]] = {
    "attention": ("full",),
    "position": ("learned1d", "learned2d", "sincos2d", "relative_bias", "none"),
    "position_at": ("stem",),
    "stem": ("patch", "conv", "resnet"),
    "patch_norm": ("none",),
    "norm": ("pre",),
    "proj": (True,),
    "embed_norm": (False,),
    "rope": (False,),
    "norm_kind": ("layer",),
    "key_bias": (True,),
    "mlp_activation": ("gelu", "relu2"),
    "mlp_norm": (False,),
    "relative_table": ("none",),
    "pool": ("cls", "mean", "mean_all", "map"),
    "attention_norm": (False,),
    "unit_norm": (False,),
}
"""Settings whose steps can be followed: those of the paper and of the bundled model."""


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
    """Table of positions added to the tokens; None if there is none."""
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
    scale: float
    """1 / √K."""
    products: Float[Tensor, "N N"]
    """Products of every query with every key."""
    offsets: Float[Tensor, "N N"] | None
    """Contribution of relative positions to the scores, already scaled."""
    scores: Float[Tensor, "N N"]
    """Input of the softmax."""
    weights: Float[Tensor, "N N"]
    output: Float[Tensor, "N K"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Walkthrough:
    """All steps from the image through one block, and from the last block to the logits."""

    embedded: Embedded
    layer: int
    grid: Grid
    """Grid of this block."""
    prefix: int
    entering: Float[Tensor, "N D"]
    """Tokens that enter the block."""
    read: Float[Tensor, "N D"]
    """Input of the heads: the tokens after a LayerNorm."""
    number: int
    head: Head
    """The head that is followed."""
    all_weights: Float[Tensor, "A N"]
    """Attention weights of the query in every head."""
    query: int
    """Index of the token that is followed."""
    joined: Float[Tensor, "N AK"]
    """Concatenated outputs of all heads."""
    projection: Linear
    projected: Float[Tensor, "N D"]
    gamma: Float[Tensor, " D"] | None
    """LayerScale's factor on the attention output."""
    branch_norm: bool
    """True if the attention output has its own LayerNorm."""
    leaving: Float[Tensor, "N D"]
    """Tokens with the attention output added."""
    own: Float[Tensor, "N D"]
    """Output of the model's own attention, to compare with `projected`."""
    mlp: MlpSteps
    """The second half of the block."""
    readout: Readout
    """From the last block to the logits."""

    def added_as(self, name: str) -> str:
        """Formula of a branch output as it is added to the tokens."""
        if self.branch_norm:
            return f"LN({name})"
        return name if self.gamma is None else f"γ {name}"

    @property
    def difference(self) -> float:
        """Largest difference between these steps and the model's own, relative to its size."""
        pairs = [(self.projected, self.own), (self.mlp.leaving, self.mlp.own)]
        if self.readout.logits is not None:
            pairs.append((self.readout.logits, self.readout.own))
        return max(_difference(ours, own) for ours, own in pairs)


def _difference(ours: Tensor, own: Tensor) -> float:
    largest = float(own.abs().max())
    return float((ours - own).abs().max()) / (largest or 1.0)


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
        raise Unsupported(
            f"a {type(model).__name__} has no heads to follow; valid: a Vision Transformer"
        )
    check_kinds(model.config)
    number = layer_number(layer, model.config.depth)
    heads = model.config.heads
    if not -heads <= head < heads:
        raise InputError(f"head {head} does not exist; valid: {-heads} to {heads - 1}")
    visits: list[Visit] = []
    image = image.to(next(model.parameters()).device)
    with torch.inference_mode(), visiting(model, visits.append):
        model.features(image[None])
    visit = visits[number]
    query = model.config.prefix + _place(token, visit.grid)
    readout = read_out(model, [visit.leaving for visit in visits])
    return _follow(model, visit, _embed(model, image), head % heads, query, readout)


def check_kinds(config: ViTConfig) -> None:
    """Raise for a model with a part whose steps are not explained."""
    for name, valid in KINDS.items():
        found = getattr(config, name)
        if found not in valid:
            choices = ", ".join(map(str, valid))
            raise Unsupported(f"walkthrough: {name} {found} is not explained; valid: {choices}")


def _place(token: tuple[int, int] | None, grid: Grid) -> int:
    row, column = (grid[0] // 2, grid[1] // 2) if token is None else token
    if not (0 <= row < grid[0] and 0 <= column < grid[1]):
        raise InputError(
            f"token {row},{column} is not in the grid; valid: row 0 to {grid[0] - 1}, "
            f"column 0 to {grid[1] - 1}"
        )
    return row * grid[1] + column


@torch.inference_mode()
def _embed(model: VisionTransformer, image: Float[Tensor, "C H W"]) -> Embedded:
    images, stem = image[None], model.stem
    made = model.stem(images)[0]  # [h, w, D]
    grid = (made.shape[0], made.shape[1])
    flat, projection = None, None
    if isinstance(stem, PatchEmbed) and not isinstance(stem, HybridEmbed):
        flat = double(flatten_patches(images, stem.patch_size)[0].flatten(0, 1))
        projection = linear_of(stem.proj.weight.flatten(1), stem.proj.bias)
    prefix = [part[0] for part in (model.cls_token, model.registers) if part is not None]
    before = double(torch.cat(prefix)) if prefix else torch.zeros(0, made.shape[2]).double()
    patches = double(made.flatten(0, 1))
    tokens, positions = torch.cat([before, patches]), None
    if len(model.positions):
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
    head: int,
    query: int,
    readout: Readout,
) -> Walkthrough:
    block, attention = visit.block, visit.block.attention
    assert isinstance(attention, SelfAttention)
    entering = double(visit.entering[0])
    assert isinstance(block.norm1, nn.LayerNorm)
    read = layer_norm(entering, block.norm1)
    followed: Head | None = None
    rows, outputs = [], []
    for number in range(attention.heads):
        found = _one_head(attention, read, number, visit.grid)
        rows.append(found.weights[query])
        outputs.append(found.output)
        followed = found if number == head else followed
    assert followed is not None
    joined = torch.cat(outputs, dim=1)
    assert isinstance(attention.proj, nn.Linear)
    projection = linear_of(*merged(attention.proj))
    projected = projection(joined)
    leaving = entering + branch(projected, block.scale1)
    return Walkthrough(
        embedded=embedded,
        layer=visit.layer,
        grid=visit.grid,
        prefix=model.config.prefix,
        entering=entering,
        read=read,
        number=head,
        head=followed,
        all_weights=torch.stack(rows),
        query=query,
        joined=joined,
        projection=projection,
        projected=projected,
        gamma=double(block.scale1.gamma) if isinstance(block.scale1, LayerScale) else None,
        branch_norm=isinstance(block.scale1, nn.LayerNorm),
        leaving=leaving,
        own=double(attention(block.norm1(visit.entering), visit.grid)[0]),
        mlp=follow_mlp(block, model.config, leaving, visit.leaving[0]),
        readout=readout,
    )


def _one_head(
    attention: SelfAttention, read: Float[Tensor, "N D"], number: int, grid: Grid
) -> Head:
    if not isinstance(attention, VariantAttention):
        attention = VariantAttention(attention)  # the same layers, and no part of its own
    layers = _split(attention, number)
    q, k, v = (layer(read) for layer in layers)
    normed = None
    if isinstance(attention.q_norm, nn.LayerNorm) and isinstance(attention.k_norm, nn.LayerNorm):
        normed = layer_norm(q, attention.q_norm), layer_norm(k, attention.k_norm)
    queries, keys = normed or (q, k)
    scale = q.shape[1] ** -0.5
    products = queries @ keys.T
    offsets = None
    if attention.offset_bias is not None:
        offsets = double(attention.offset_bias(grid, attention.prefix)[number])
    scores = products * scale if offsets is None else products * scale + offsets
    weights = scores.softmax(dim=1)
    return Head(
        to_q=layers[0],
        to_k=layers[1],
        to_v=layers[2],
        q=q,
        k=k,
        v=v,
        normed=normed,
        scale=scale,
        products=products,
        offsets=offsets,
        scores=scores,
        weights=weights,
        output=weights @ v,
    )


def _split(attention: SelfAttention, number: int) -> tuple[Linear, Linear, Linear]:
    """Rows of the fused matrix for the queries, keys and values of a head."""
    weight, bias = merged(attention.qkv)
    weights = rearrange(weight, "(p a k) d -> p a k d", p=3, a=attention.heads)[:, number]
    biases: Any = [None] * 3
    if bias is not None:
        biases = rearrange(bias, "(p a k) -> p a k", p=3, a=attention.heads)[:, number]
    q, k, v = (linear_of(weight, bias) for weight, bias in zip(weights, biases, strict=True))
    return q, k, v


def _with_prefix(table: Tensor, grid: Grid, prefix: int) -> Float[Tensor, "N D"]:
    """Table with zeros for prefix tokens without an entry; those with one come first."""
    table = double(table)
    entries = len(table) - grid[0] * grid[1]
    zeros = table.new_zeros(prefix - entries, table.shape[1])
    return torch.cat([table[:entries], zeros, table[entries:]])
