"""Order of the images of each epoch, and counter-based randomness.

A draw depends on the seed and its purpose, never on earlier draws: a run that resumes at step 1000
needs no generator state, only the number 1000. Every image comes once an epoch, in a separate order
for each epoch; with weights, as often as its share of all the weights.

Shards are shuffled, and then the images of a few of them at a time: a batch needs only these.
"""

import hashlib
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vitlab.errors import DataError


def seed_for(seed: int, *purpose: str | int) -> int:
    """64-bit seed for one purpose, such as `"augment", step`."""
    key = [part if isinstance(part, str) else int(part) for part in (seed, *purpose)]
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def generator(seed: int, *purpose: str | int) -> torch.Generator:
    """New generator on the CPU for one purpose."""
    return torch.Generator().manual_seed(seed_for(seed, *purpose))


KEPT = 2
"""Number of cached orders: a batch may lie in two epochs, or two windows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Shards:
    """The shards of a set, for the order of its images."""

    ends: Int[Tensor, " S"]
    """Number of images in each shard and those before it."""
    members: Int[Tensor, " N"] | None
    """Images of all shards, shard by shard; None: the images are in that order."""
    window: int
    """Number of shards whose images are shuffled together."""

    def windows(self, seed: int, epoch: int) -> tuple[Int[Tensor, " S"], Int[Tensor, " W"]]:
        """Shards in the order of an epoch, and the number of images up to each window's end."""
        shards = torch.randperm(len(self.ends), generator=generator(seed, "shards", epoch))
        ends = (self.ends - self._starts)[shards].cumsum(0)
        last = range(self.window, len(ends) + self.window, self.window)
        return shards, ends[[min(number, len(ends)) - 1 for number in last]]

    def images(self, shards: Int[Tensor, " K"]) -> Int[Tensor, " M"]:
        """Images of some shards."""
        bounds = zip(self._starts[shards].tolist(), self.ends[shards].tolist(), strict=True)
        places = torch.cat([torch.arange(start, end) for start, end in bounds])
        return places if self.members is None else self.members[places]

    @property
    def _starts(self) -> Int[Tensor, " S"]:
        return torch.cat([self.ends.new_zeros(1), self.ends[:-1]])


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
        shards: Shards | None = None,
    ) -> None:
        """`shards` are those of a set that is too large to be shuffled as a whole."""
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
        if weights is not None and shards is not None:
            raise DataError(
                f"balance=sampling draws from all {len(shards.ends)} shards at once; "
                f"valid: shard_window={len(shards.ends)}, or balance=loss"
            )
        self.weights = weights
        self.shards = shards
        self._orders: dict[tuple[int, int], Tensor] = {}

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
            found[here] = self._images(epoch, places[here])
        return found.repeat_interleave(self.repeats), epochs.repeat_interleave(self.repeats)

    def shards_at(self, step: int) -> tuple[list[int], list[int]]:
        """Shards of the window in which a batch begins, and of the next one."""
        assert self.shards is not None
        epoch, place = divmod(step * self.distinct, self.images)
        shards, ends = self.shards.windows(self.seed, epoch)
        window, size = int(torch.searchsorted(ends, place, right=True)), self.shards.window
        now = shards[window * size : (window + 1) * size]
        later = shards[(window + 1) * size : (window + 2) * size]
        if not len(later):
            later = self.shards.windows(self.seed, epoch + 1)[0][:size]
        return now.tolist(), later.tolist()

    def _images(self, epoch: int, places: Int[Tensor, " M"]) -> Int[Tensor, " M"]:
        """Images at some places of an epoch."""
        if self.shards is None:
            return self._order(epoch)[places]
        shards, ends = self.shards.windows(self.seed, epoch)
        windows = torch.searchsorted(ends, places, right=True)
        found = torch.empty_like(places)
        for window in windows.unique().tolist():
            here = windows == window
            start = int(ends[window - 1]) if window else 0
            found[here] = self._window(epoch, window, shards)[places[here] - start]
        return found

    def _order(self, epoch: int) -> Int[Tensor, " N"]:
        if (epoch, 0) not in self._orders:
            draw = generator(self.seed, "order", epoch)
            order = torch.randperm(self.images, generator=draw)
            self._keep(epoch, 0, order if self.weights is None else self._weighted(order, draw))
        return self._orders[epoch, 0]

    def _window(self, epoch: int, window: int, shards: Int[Tensor, " S"]) -> Int[Tensor, " M"]:
        """Images of a window of shards, shuffled."""
        assert self.shards is not None
        if (epoch, window) not in self._orders:
            size = self.shards.window
            images = self.shards.images(shards[window * size : (window + 1) * size])
            draw = generator(self.seed, "window", epoch, window)
            self._keep(epoch, window, images[torch.randperm(len(images), generator=draw)])
        return self._orders[epoch, window]

    def _keep(self, epoch: int, window: int, order: Tensor) -> None:
        while len(self._orders) >= KEPT:
            del self._orders[next(iter(self._orders))]
        self._orders[epoch, window] = order

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
