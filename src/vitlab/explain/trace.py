"""A forward pass that keeps what enters each block, and the way back, one block at a time.

The model runs as it always does, with fused attention; the weights of a single block are in memory
at once.
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
"""Places on the way through a block: what the one before it gave, what its attention reads, the
values that its attention mixed."""


@dataclass(frozen=True, eq=False)
class Nodes:
    """What a block computed, from the output of the one before to its own."""

    before: Float[Tensor, "B L D"]
    read: Float[Tensor, "B N D"]
    q: Float[Tensor, "B A Q K"]
    k: Float[Tensor, "B A N K"]
    v: Float[Tensor, "B A N K"]
    mixed: Float[Tensor, "B A M K"]
    output: Float[Tensor, "B M D"]


@dataclass(frozen=True, eq=False)
class Stage:
    """One block, and what enters it."""

    block: EncoderBlock
    before: Float[Tensor, "B L D"]
    """What the block before gave; of more patches, where they are pooled on the way."""
    enter: Callable[[Tensor], Tensor]
    """What is done to that on the way: positions that each block adds, pooled patches."""
    x: Float[Tensor, "B N D"]
    """What enters the block."""
    grid: Grid
    """Of this block's patches."""
    read: int | None
    """How many of its tokens are read behind it, from the first on; None: all."""
    kept: tuple[Tensor, Tensor] | None = None
    """Its queries and keys, where the attention is one of ours."""
    recorded: Nodes | None = None
    """All of its graph, which serves for one way back; None: it is computed again."""

    @property
    def pools(self) -> bool:
        """Whether patches are pooled before this block."""
        return self.before.shape[1] != self.x.shape[1]

    def weights(self) -> Float[Tensor, "B A N N"]:
        """Where the block looked."""
        attention = self.block.attention
        if self.kept is not None and self.kept[0].shape[2] == self.x.shape[1]:
            assert isinstance(attention, SelfAttention)
            return attention.weights_of(*self.kept, self.grid)
        return self.block.attention_weights(self.x, self.grid)


@dataclass(frozen=True, eq=False)
class Trace:
    """What a batch of images left in a model."""

    model: VisionTransformer
    grid: Grid
    """Of the patches that the stem gives."""
    stages: list[Stage]
    output: Float[Tensor, "B M D"]
    """Of the last block: the tokens that the head reads."""

    @property
    def prefix(self) -> int:
        """Tokens before the patches."""
        return self.model.config.prefix

    @property
    def last_grid(self) -> Grid:
        """Of the patches behind the last block."""
        return self.stages[-1].grid if self.stages else self.grid

    def tokens(self) -> Float[Tensor, "B M D"]:
        """What the pooling reads."""
        return self.model.encoder.norm(self.output)

    def logits(self) -> Float[Tensor, "B classes"]:
        """What the model answers."""
        return self.model.classify(self.model.pool_tokens(self.tokens()))


def trace(
    model: VisionTransformer, images: Float[Tensor, "B C H W"], *, record: bool = False
) -> Trace:
    """Run the model on images; with `record`, one way back need not compute the blocks again."""
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
    """A block at work: what is kept of it, and its output."""
    if not isinstance(stage.block.attention, SelfAttention):
        return stage, stage.block(stage.x, stage.grid, stage.read)
    if record:
        nodes = recorded(stage)
        kept = (nodes.q.detach(), nodes.k.detach())
        return replace(stage, kept=kept, recorded=nodes), nodes.output.detach()
    nodes = _nodes(stage, stage.before, stage.x)
    return replace(stage, kept=(nodes.q, nodes.k)), nodes.output


def recorded(stage: Stage) -> Nodes:
    """The block computed with its graph, which begins at the output of the one before."""
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
    mixed = attention.mix(q, k, v, stage.grid, stage.read)
    output = block.finish(x[:, : stage.read], attention.join(mixed))
    return Nodes(before, read, q, k, v, mixed, output)


@dataclass(frozen=True, eq=False)
class Back:
    """What one block's attention read, and the gradients that were asked for."""

    read: Float[Tensor, "B N D"]
    q: Float[Tensor, "B A Q K"]
    k: Float[Tensor, "B A N K"]
    v: Float[Tensor, "B A N K"]
    gradients: dict[Node, Tensor]


def back_through(stage: Stage, upstream: Float[Tensor, "B M D"], wanted: tuple[Node, ...]) -> Back:
    """Carry the gradient of a block's output to nodes in it."""
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
    """Blocks from the last to the first wanted, with gradients of the target's score in each."""
    upstream = score_gradient(found, target)
    for number in range(len(found.stages) - 1, down_to - 1, -1):
        wanted = nodes if number == down_to or "before" in nodes else (*nodes, "before")
        back = back_through(found.stages[number], upstream, wanted)
        yield number, found.stages[number], back
        upstream = back.gradients.get("before", upstream)


def score_gradient(
    found: Trace, target: Int[Tensor, " B"], at: Literal["output", "tokens"] = "output"
) -> Float[Tensor, "B M D"]:
    """Gradient of each image's class score, at the last block's output or behind the last norm."""
    model = found.model
    with torch.enable_grad():
        node = (found.output if at == "output" else found.tokens()).detach().requires_grad_()
        tokens = model.encoder.norm(node) if at == "output" else node
        score = total_score(model.classify(model.pool_tokens(tokens)), target)
    return torch.autograd.grad(score, node)[0]


def total_score(logits: Float[Tensor, "B classes"], target: Int[Tensor, " B"]) -> Float[Tensor, ""]:
    """The sum of each image's score of its class: images do not meet, so neither do gradients."""
    return logits.gather(1, target[:, None]).sum()


# Watching the blocks of a model while it runs; nothing in the model is changed or slowed.


@dataclass(frozen=True, eq=False)
class Visit:
    """One block at work: what went in, what came out, and how its patches lie."""

    layer: int
    block: EncoderBlock
    grid: Grid
    """Of this block: a model may go on with fewer patches after some of them."""
    entering: Float[Tensor, "B N D"]
    leaving: Float[Tensor, "B N D"]

    def attention(self) -> Float[Tensor, "B A N N"]:
        """Where the block looked, whichever kernel computed it."""
        return self.block.attention_weights(self.entering, self.grid)


@contextmanager
def visiting(model: VisionTransformer, see: Callable[[Visit], None]) -> Iterator[None]:
    """Let `see` be told of each block as soon as it has run."""
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
