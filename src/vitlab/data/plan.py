"""Plan of a batch, the same in every process, and the parts of it that a process makes.

A plan is made of integers and other small numbers: which images, and all random draws. A process
that makes some rows of a batch reads the images of these rows and of those they are mixed with.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Int
from torch import Tensor

from vitlab.data.augment.config import AugmentConfig
from vitlab.data.augment.draws import Draws, draw, draw_seeds
from vitlab.data.order import Order, generator

Rows = Int[Tensor, " _"]
"""Rows of a batch, increasing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """Rows of a batch that are made together."""

    read: Rows
    """Rows whose images are read, increasing: the part and its partners."""
    draws: Draws
    """Draws of these rows; of partners that are not in the part, the partner is the row itself."""
    kept: Rows | None = None
    """Places of the part among the rows that are read; None: all."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """Everything about the batch of one step but pixels and labels."""

    step: int
    index: Int[Tensor, " B"]
    epoch: Int[Tensor, " B"]
    crops: Int[Tensor, " B"]
    """Seeds of the random crops."""
    parts: tuple[Part, ...]

    @property
    def read(self) -> Rows:
        """Rows whose images this process reads, increasing."""
        if len(self.parts) == 1:
            return self.parts[0].read
        return torch.cat([part.read for part in self.parts]).unique()


def plan_batch(
    order: Order, config: AugmentConfig, seed: int, step: int, rows: Sequence[Rows] | None = None
) -> Plan:
    """Plan of a step; `rows` are those of each part, increasing; None: one part, the batch."""
    index, epoch = order.slots(step)
    draws = draw(config, len(index), generator(seed, "augment", step))
    whole = (Part(read=torch.arange(len(index)), draws=draws),)
    return Plan(
        step=step,
        index=index,
        epoch=epoch,
        crops=draw_seeds(len(index), generator(seed, "crop", step)),
        parts=whole if rows is None else tuple(_part(own, draws) for own in rows),
    )


def _part(rows: Rows, draws: Draws) -> Part:
    if draws.partner is None:
        return Part(read=rows, draws=draws.take(rows))
    read = torch.cat([rows, draws.partner[rows]]).unique()
    taken = draws.take(read)
    assert taken.partner is not None
    partner = torch.where(torch.isin(read, rows), taken.partner, read)
    return Part(
        read=read,
        draws=replace(taken, partner=torch.searchsorted(read, partner)),
        kept=torch.searchsorted(read, rows),
    )
