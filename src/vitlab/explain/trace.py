"""Forward pass that keeps each block's input, and a backward pass one block at a time.

The model runs as usual, with fused attention; only the weights of a single block are in memory at
once.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vitlab.models.vit import VisionTransformer
from vitlab.nn.attention import SelfAttention
from vitlab.nn.encoder import EncoderBlock, Grid

Node = Literal["before", "read", "mixed"]
"""Places in a block: the output of the previous block, the attention input, the attention output
before projection.
"""


@dataclass(frozen=True, eq=False)
class Nodes:
    """Intermediate results of a block, from the output of the previous one to its own."""

    before: Float[Tensor, "B L D"]
    read: Float[Tensor, "B N D"]
    q: Float[Tensor, "B A Q K"]
    k: Float[Tensor, "B A N K"]
    v: Float[Tensor, "B A N K"]
    mixed: Float[Tensor, "B A M K"]
    output: Float[Tensor, "B M D"]


@dataclass(frozen=True, eq=False)
class Stage:
    """One block and its input."""

    block: EncoderBlock
    before: Float[Tensor, "B L D"]
    """Output of the previous block; with more patches, if they are pooled in between."""
    enter: Callable[[Tensor], Tensor]
    """Step in between: positions added to each block, pooled patches."""
    x: Float[Tensor, "B N D"]
    """Input of the block."""
    grid: Grid
    """Grid of this block's patches."""
    read: int | None
    """Number of leading tokens that are used after the block; None: all."""
    kept: tuple[Tensor, Tensor] | None = None
    """Its queries and keys, if the attention is a built-in one."""
    recorded: Nodes | None = None
    """Its complete graph, for one backward pass; None: it is recomputed."""

    @property
    def pools(self) -> bool:
        """True if patches are pooled before this block."""
        return self.before.shape[1] != self.x.shape[1]

    def weights(self) -> Float[Tensor, "B A N N"]:
        """Attention weights of the block."""
        attention = self.block.attention
        if self.kept is not None and self.kept[0].shape[2] == self.x.shape[1]:
            assert isinstance(attention, SelfAttention)
            return attention.weights_of(*self.kept, self.grid)
        return self.block.attention_weights(self.x, self.grid)


@dataclass(frozen=True, eq=False)
class Trace:
    """Trace of a batch of images through a model."""

    model: VisionTransformer
    grid: Grid
    """Grid of the patches at the output of the stem."""
    stages: list[Stage]
    output: Float[Tensor, "B M D"]
    """Output of the last block: the tokens that the head reads."""

    @property
    def prefix(self) -> int:
        """Tokens before the patches."""
        return self.model.config.prefix

    @property
    def last_grid(self) -> Grid:
        """Grid of the patches after the last block."""
        return self.stages[-1].grid if self.stages else self.grid

    def tokens(self) -> Float[Tensor, "B M D"]:
        """Input of the pooling."""
        return self.model.encoder.norm(self.output)

    def logits(self) -> Float[Tensor, "B classes"]:
        """Logits of the model."""
        return self.model.classify(self.model.pool_tokens(self.tokens()))


def trace(
    model: VisionTransformer, images: Float[Tensor, "B C H W"], *, record: bool = False
) -> Trace:
    """Run the model on images; with `record`, one backward pass need not recompute the blocks."""
    with torch.no_grad():
        x, grid, positions = model.embed(images)
        stages = []
        encoder, last = model.encoder, len(model.encoder.blocks) - 1
        for layer, block in enumerate(encoder.blocks):
            assert isinstance(block, EncoderBlock)
            enter = partial(encoder.enter, grid=grid, positions=positions, layer=layer)
            read = model.read if layer == last else None
            stage = Stage(block, x, enter, enter(x), encoder.grid_at(layer, grid), read)
            stage, x = _run(stage, record=record)
            stages.append(stage)
        return Trace(model, grid, stages, x)


def _run(stage: Stage, *, record: bool) -> tuple[Stage, Float[Tensor, "B M D"]]:
    """Run a block; return its kept results and its output."""
    if not isinstance(stage.block.attention, SelfAttention):
        return stage, stage.block(stage.x, stage.grid, stage.read)
    if record:
        nodes = recorded(stage)
        kept = (nodes.q.detach(), nodes.k.detach())
        return replace(stage, kept=kept, recorded=nodes), nodes.output.detach()
    nodes = _nodes(stage, stage.before, stage.x)
    return replace(stage, kept=(nodes.q, nodes.k)), nodes.output


def recorded(stage: Stage) -> Nodes:
    """Compute the block with its graph, which begins at the output of the previous block."""
    if stage.recorded is not None:
        return stage.recorded
    with torch.enable_grad():
        before = stage.before.detach().requires_grad_()
        return _nodes(stage, before, stage.enter(before))


def _nodes(stage: Stage, before: Float[Tensor, "B L D"], x: Float[Tensor, "B N D"]) -> Nodes:
    block, attention = stage.block, stage.block.attention
    assert isinstance(attention, SelfAttention)
    read = block.normed(x)
    q, k, v = attention.project(read, stage.grid, stage.read)
    mixed = attention.attend(q, k, v, stage.grid, stage.read)
    output = block.finish(x[:, : stage.read], attention.project_out(mixed))
    return Nodes(before, read, q, k, v, mixed, output)


@dataclass(frozen=True, eq=False)
class Back:
    """Attention input of one block, and the requested gradients."""

    read: Float[Tensor, "B N D"]
    q: Float[Tensor, "B A Q K"]
    k: Float[Tensor, "B A N K"]
    v: Float[Tensor, "B A N K"]
    gradients: dict[Node, Tensor]


def back_through(stage: Stage, upstream: Float[Tensor, "B M D"], wanted: tuple[Node, ...]) -> Back:
    """Propagate the gradient of a block's output to nodes in it."""
    nodes = recorded(stage)
    ends = [getattr(nodes, name) for name in wanted]
    gradients = torch.autograd.grad(nodes.output, ends, upstream)
    return Back(
        nodes.read.detach(),
        nodes.q.detach(),
        nodes.k.detach(),
        nodes.v.detach(),
        dict(zip(wanted, gradients, strict=True)),
    )


def backward(
    found: Trace, target: Int[Tensor, " B"], nodes: tuple[Node, ...], down_to: int = 0
) -> Iterator[tuple[int, Stage, Back]]:
    """Blocks from the last to the first requested, with gradients of the target's score in each."""
    upstream = score_gradient(found, target)
    for number in range(len(found.stages) - 1, down_to - 1, -1):
        wanted = nodes if number == down_to or "before" in nodes else (*nodes, "before")
        back = back_through(found.stages[number], upstream, wanted)
        yield number, found.stages[number], back
        upstream = back.gradients.get("before", upstream)


def score_gradient(
    found: Trace, target: Int[Tensor, " B"], at: Literal["output", "tokens"] = "output"
) -> Float[Tensor, "B M D"]:
    """Gradient of each image's class score, at the last block's output or after the last norm."""
    model = found.model
    with torch.enable_grad():
        node = (found.output if at == "output" else found.tokens()).detach().requires_grad_()
        tokens = model.encoder.norm(node) if at == "output" else node
        score = total_score(model.classify(model.pool_tokens(tokens)), target)
    return torch.autograd.grad(score, node)[0]


def total_score(logits: Float[Tensor, "B classes"], target: Int[Tensor, " B"]) -> Float[Tensor, ""]:
    """Sum of each image's score of its class: images are independent, so gradients are too."""
    return logits.gather(1, target[:, None]).sum()


# Observing the blocks of a running model; nothing in the model is changed or slowed.


@dataclass(frozen=True, eq=False)
class Visit:
    """One run of a block: its input, its output, and its grid."""

    layer: int
    block: EncoderBlock
    grid: Grid
    """Grid of this block: a model may reduce the number of patches between blocks."""
    entering: Float[Tensor, "B N D"]
    leaving: Float[Tensor, "B N D"]

    def attention(self) -> Float[Tensor, "B A N N"]:
        """Attention weights of the block, whichever kernel computed it."""
        return self.block.attention_weights(self.entering, self.grid)


@contextmanager
def visiting(model: VisionTransformer, see: Callable[[Visit], None]) -> Iterator[None]:
    """Call `see` for each block as soon as it has run."""
    hooks = []
    for layer, block in enumerate(model.encoder.blocks):
        assert isinstance(block, EncoderBlock)
        hooks.append(block.register_forward_hook(_teller(layer, see)))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _teller(layer: int, see: Callable[[Visit], None]) -> Callable[[Any, Any, Any], None]:
    def tell(block: EncoderBlock, given: tuple[Any, ...], leaving: Tensor) -> None:
        see(Visit(layer, block, given[1], given[0], leaving))

    return tell


# Maps of patches, computed from rows over the tokens of a trace.


@dataclass(frozen=True, eq=False)
class Maps:
    """A map of patches for each image of a batch."""

    map: Float[Tensor, "B h w"]
    layers: tuple[Float[Tensor, "B *A _ _"], ...] = ()
    """On request: a map for each block, or one for each of its heads."""
    elsewhere: Float[Tensor, " B"] | None = None
    """Share of a distribution on tokens that are not patches."""
    fine: Float[Tensor, "B H W"] | None = None
    """Map for every pixel of the model input, from methods that provide it."""


def patches_of(rows: Float[Tensor, "*B N"], prefix: int, grid: Grid) -> Float[Tensor, "*B h w"]:
    """Part of rows over tokens that belongs to patches, arranged on the grid."""
    return rows[..., prefix:].unflatten(-1, grid)


def unpooled(rows: Float[Tensor, "*B M"], prefix: int, grid: Grid) -> Float[Tensor, "*B N"]:
    """Rows over tokens of 2x2-averaged patches, expanded to those patches: a quarter each."""
    finer = patches_of(rows, prefix, grid) / 4
    for axis in (-2, -1):
        finer = finer.repeat_interleave(2, dim=axis)
    return torch.cat([rows[..., :prefix], finer.flatten(-2)], dim=-1)


def share_elsewhere(rows: Float[Tensor, "B N"], prefix: int) -> Float[Tensor, " B"]:
    """Share of each row on the tokens before the patches."""
    return rows[:, :prefix].sum(dim=1) / rows.sum(dim=1)
