"""Rows of a batch that each process computes, and the parts in which it computes them.

A batch is cut into `accumulate` parts, and each part into a piece for every process: a part holds
the same images for any number of processes. With `shards`, it is cut into that many parts, and a
process computes some of them whole.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from vitlab.data.plan import Rows
from vitlab.errors import ConfigError
from vitlab.machine.world import World
from vitlab.training.config import TrainConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """Rows of this process in one part of a batch."""

    first: int
    """First row, counted in the part."""
    images: int
    part: int
    """Images of the whole part."""


def piece_of(config: TrainConfig, world: World) -> Piece:
    """Rows of this process in every part: as many as in the others, or one more."""
    part = config.batch_size // config.accumulate
    first, end = (part * rank // world.size for rank in (world.rank, world.rank + 1))
    return Piece(first=first, images=end - first, part=part)


def own_shards(config: TrainConfig, world: World, rank: int | None = None) -> range:
    """Numbers of the shards that a process computes: this one, unless `rank` is given."""
    rank = world.rank if rank is None else rank
    return range(config.shards * rank // world.size, config.shards * (rank + 1) // world.size)


def rows_of(config: TrainConfig, world: World) -> Sequence[Rows] | None:
    """Rows of the batch that the loader of this process makes, group by group; None: all."""
    if config.shards:
        size = config.batch_size // config.shards
        return [torch.arange(k * size, (k + 1) * size) for k in own_shards(config, world)]
    if world.size == 1:
        return None
    piece = piece_of(config, world)
    own = torch.arange(piece.first, piece.first + piece.images)
    parts = torch.arange(config.accumulate) * piece.part
    return [(parts[:, None] + own).flatten()]


def check_division(config: TrainConfig, world: World) -> None:
    """Raise if the batch cannot be divided among the processes as configured."""
    if config.shards and config.shards % world.size:
        raise ConfigError(
            f"shards {config.shards} among {world.size} processes; valid: a number of processes "
            f"that divides {config.shards}"
        )
    part = config.batch_size // config.accumulate
    if part < world.size:
        raise ConfigError(
            f"batches of {config.batch_size} images in {config.accumulate} parts for "
            f"{world.size} processes; valid: parts of at least one image for each process"
        )
