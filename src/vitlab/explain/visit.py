"""Watching the blocks of a model while it runs; nothing in the model is changed or slowed."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from jaxtyping import Float
from torch import Tensor

from vitlab.models.vit import VisionTransformer
from vitlab.nn.encoder import EncoderBlock, Grid


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
