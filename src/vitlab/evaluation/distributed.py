"""Batches of an evaluation that several processes compute, each of them some, and all of them see.

Batches are the same for any number of processes, so their outputs are too, to the last bit.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor, nn

from vitlab.machine.world import World, is_shard

Batch = tuple[Tensor, Tensor, Tensor]
"""Images `[B, C, H, W]` ready for the model, labels, and the index of each image `[B]`."""
B = TypeVar("B", bound=tuple[Tensor, ...])


@contextmanager
def inference(model: nn.Module) -> Iterator[None]:
    """Context of a forward pass for evaluation.

    A model in shards keeps buffers of its first pass, and training writes to them: they must not be
    tensors of the inference mode.
    """
    sharded = any(is_shard(parameter) for parameter in model.parameters())
    with torch.inference_mode(not sharded), torch.no_grad():  # the first one may allow gradients
        yield


@dataclass(frozen=True, kw_only=True)
class DistributedBatches:
    """Batches of one set of images: all of them by iteration, those of this process by `own`."""

    every: Callable[[], Iterable[Batch]]
    own: Callable[[], Iterable[Batch]]
    count: int
    """Number of batches of all processes."""
    world: World
    broken: dict[Path, str]
    """Images that could not be read, with the reason: added by each process, and then by all."""
    blank: Callable[[], Batch] | None = None
    """A batch for a process that has none while others do, where all must call the model."""

    def __iter__(self) -> Iterator[Batch]:
        return iter(self.every())


def computed(
    batches: Iterable[Batch], compute: Callable[[Batch], B]
) -> Iterator[tuple[Tensor, ...]]:
    """`compute(batch)` for every batch in order; its last tensor must be the index."""
    if not isinstance(batches, DistributedBatches):
        return map(compute, batches)
    own = [compute(batch) for batch in batches.own()]
    if batches.blank is not None:
        rounds = -(-batches.count // batches.world.size)
        for _ in range(rounds - len(own)):
            compute(batches.blank())
    for found in batches.world.collect({str(path): why for path, why in batches.broken.items()}):
        batches.broken.update({Path(path): why for path, why in found.items()})
    return _gathered(own, batches.world)


def _gathered(own: list[B], world: World) -> Iterator[tuple[Tensor, ...]]:
    """Batches of all processes, in the order of a single one."""
    kinds = [(str(column.dtype), list(column.shape[1:])) for column in own[0]] if own else []
    layout = next(filter(None, world.collect(kinds)), [])
    sizes = world.collect([len(batch[-1]) for batch in own])
    columns = []
    for number, (dtype, shape) in enumerate(layout):
        empty = torch.empty(0, *shape, dtype=getattr(torch, dtype.removeprefix("torch.")))
        rows = world.gather(torch.cat([batch[number] for batch in own]) if own else empty)
        parts = zip(rows, sizes, strict=True)
        columns.append([chunk for part, lengths in parts for chunk in part.split(lengths)])
    batches = list(zip(*columns, strict=True))
    # Process r computed the batches r, r + size, ...
    places = [place * world.size + rank for rank, n in enumerate(sizes) for place in range(len(n))]
    return (batches[number] for number in sorted(range(len(batches)), key=places.__getitem__))
