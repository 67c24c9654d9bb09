"""Order of the images: every image once an epoch, in a separate order for each epoch.

With weights, the count of an image in an epoch is its share of all the weights.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vitlab.data.random import generator
from vitlab.errors import DataError

KEPT = 2
"""Number of cached orders: a batch may lie in two epochs."""


class Order:
    """Endless stream of epochs, cut into batches of equal size; one may lie in two epochs."""

    def __init__(
        self,
        images: int,
        *,
        batch_size: int,
        repeats: int,
        seed: int,
        weights: Float[Tensor, " N"] | None = None,
    ) -> None:
        if not images:
            raise DataError("no images; valid: at least 1")
        if batch_size < 1 or batch_size % repeats:
            raise DataError(
                f"batch_size {batch_size} is not a positive multiple of repeats {repeats}"
            )
        self.images = images
        self.repeats = repeats
        self.distinct = batch_size // repeats
        self.seed = seed
        self.weights = weights
        self._orders: dict[int, Tensor] = {}

    @property
    def steps_per_epoch(self) -> float:
        """Number of batches with every image `repeats` times; rarely an integer."""
        return self.images / self.distinct

    def slots(self, step: int) -> tuple[Int[Tensor, " B"], Int[Tensor, " B"]]:
        """Image and epoch of every place in the batch of this step."""
        places = torch.arange(step * self.distinct, (step + 1) * self.distinct)
        epochs, places = places // self.images, places % self.images
        found = torch.empty_like(places)
        for epoch in range(int(epochs[0]), int(epochs[-1]) + 1):
            here = epochs == epoch
            found[here] = self._order(epoch)[places[here]]
        return found.repeat_interleave(self.repeats), epochs.repeat_interleave(self.repeats)

    def _order(self, epoch: int) -> Int[Tensor, " N"]:
        if epoch not in self._orders:
            while len(self._orders) >= KEPT:
                del self._orders[next(iter(self._orders))]
            draw = generator(self.seed, "order", epoch)
            order = torch.randperm(self.images, generator=draw)
            self._orders[epoch] = order if self.weights is None else self._weighted(order, draw)
        return self._orders[epoch]

    def _weighted(self, order: Int[Tensor, " N"], draw: torch.Generator) -> Int[Tensor, " N"]:
        """Systematic sampling: counts are the expected ones, rounded down or up."""
        assert self.weights is not None
        # Images of one weight are adjacent: so the counts of classes are the expected ones too.
        order = order[self.weights[order].argsort(stable=True)]
        ends = self.weights[order].double().cumsum(0)
        offset = torch.rand((), generator=draw, dtype=torch.float64)
        places = (torch.arange(self.images) + offset) / self.images * ends[-1]
        found = order[torch.searchsorted(ends, places, right=True).clamp(max=self.images - 1)]
        return found[torch.randperm(self.images, generator=draw)]
