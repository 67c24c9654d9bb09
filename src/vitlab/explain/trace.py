"""A forward pass that keeps what enters each block, and the way back, one block at a time.

Attention matrices and activations of a single block are in memory at once, and the model runs as it
always does, with fused attention.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vitlab.errors import InputError
from vitlab.models.vit import VisionTransformer
from vitlab.nn.attention import SelfAttention
from vitlab.nn.encoder import EncoderBlock, Grid

Node = Literal["input", "read", "mixed"]
"""Places in a block: what enters it, what its attention reads, the values that attention mixed."""


@dataclass(frozen=True, eq=False)
class Stage:
    """One block, and what enters it."""

    block: EncoderBlock
    x: Float[Tensor, "B N D"]
    grid: Grid
    """Of this block's patches."""
    read: int | None
    """How many of its tokens are read behind it, from the first on; None: all."""

    def weights(self) -> Float[Tensor, "B A N N"]:
        """Where the block looked."""
        return self.block.attention_weights(self.x, self.grid)


@dataclass(frozen=True, eq=False)
class Trace:
    """What a batch of images left in a model."""

    model: VisionTransformer
    stages: list[Stage]
    output: Float[Tensor, "B M D"]
    """Of the last block: the tokens that the head reads."""

    @property
    def prefix(self) -> int:
        """Tokens before the patches."""
        return self.model.config.prefix

    def tokens(self) -> Float[Tensor, "B M D"]:
        """What the pooling reads."""
        return self.model.encoder.norm(self.output)

    def logits(self) -> Float[Tensor, "B classes"]:
        """What the model answers."""
        return self.model.classify(self.model.pool_tokens(self.tokens()))


def trace(model: VisionTransformer, images: Float[Tensor, "B C H W"]) -> Trace:
    """Run the model on images; gradients are not recorded."""
    with torch.no_grad():
        x, grid, tables = model.embed(images)
        stages = []
        last = len(model.encoder.blocks) - 1
        for layer, block in enumerate(model.encoder.blocks):
            assert isinstance(block, EncoderBlock)
            x = x + tables[layer] if tables else x
            stages.append(Stage(block, x, grid, model.read if layer == last else None))
            x = block(x, grid, stages[-1].read)
        return Trace(model, stages, x)


@dataclass(frozen=True, eq=False)
class Back:
    """What one block's attention read, and the gradients that were asked for."""

    read: Float[Tensor, "B N D"]
    q: Float[Tensor, "B A Q K"]
    k: Float[Tensor, "B A N K"]
    v: Float[Tensor, "B A N K"]
    gradients: dict[Node, Tensor]


def back_through(stage: Stage, upstream: Float[Tensor, "B M D"], wanted: tuple[Node, ...]) -> Back:
    """Compute one block again and carry the gradient of its output to the nodes in it."""
    block, attention = stage.block, _self_attention(stage.block)
    with torch.enable_grad():
        x = stage.x.detach().requires_grad_()
        read = block.normed(x)
        q, k, v = attention.project(read, stage.grid, stage.read)
        mixed = attention.mix(q, k, v, stage.grid, stage.read)
        output = block.finish(x[:, : stage.read], attention.join(mixed))
    nodes: dict[Node, Tensor] = {"input": x, "read": read, "mixed": mixed}
    gradients = torch.autograd.grad(output, [nodes[name] for name in wanted], upstream)
    return Back(
        read.detach(),
        q.detach(),
        k.detach(),
        v.detach(),
        dict(zip(wanted, gradients, strict=True)),
    )


def backward(
    found: Trace, target: Int[Tensor, " B"], nodes: tuple[Node, ...], down_to: int = 0
) -> Iterator[tuple[int, Stage, Back]]:
    """Blocks from the last to the first wanted, with gradients of the target's score in each."""
    upstream = score_gradient(found, target)
    for number in range(len(found.stages) - 1, down_to - 1, -1):
        wanted = nodes if number == down_to or "input" in nodes else (*nodes, "input")
        back = back_through(found.stages[number], upstream, wanted)
        yield number, found.stages[number], back
        upstream = back.gradients.get("input", upstream)


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


def _self_attention(block: EncoderBlock) -> SelfAttention:
    if not isinstance(block.attention, SelfAttention):
        raise InputError(
            f"{type(block.attention).__name__} is attention of your own, whose gradients are not "
            f"known; valid for it: attention and rollout, or a kind made of SelfAttention"
        )
    return block.attention
