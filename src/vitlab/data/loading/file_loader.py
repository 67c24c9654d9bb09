"""Training batches of image files, decoded ahead of time by other processes."""

import itertools
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from vitlab.data.augment.config import AugmentConfig
from vitlab.data.augment.geometry import draw_seeds
from vitlab.data.images import FileSet
from vitlab.data.loading.batch import Batch, BatchMaker
from vitlab.data.loading.order import Order
from vitlab.data.loading.pool import DecoderPool, Pending, Reasons
from vitlab.data.random import generator
from vitlab.errors import DataError
from vitlab.images.decode import Decoder
from vitlab.images.preprocessing import Preprocessing

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Slots:
    """Assignment of images to the places of a step's batch."""

    step: int
    index: Int[Tensor, " B"]
    epoch: Int[Tensor, " B"]


class FileLoader:
    """`batch(step)` depends on data, settings, seed and step; not on workers or earlier calls.

    A broken image is replaced by the next good one of its batch.
    """

    def __init__(
        self,
        data: FileSet,
        *,
        batch_size: int,
        seed: int,
        augment: AugmentConfig,
        preprocessing: Preprocessing,
        classes: int,
        device: torch.device | str = "cpu",
        workers: int = 1,
        prefetch: int = 2,
        max_broken: float = 0.2,
        weights: Float[Tensor, " N"] | None = None,
    ) -> None:
        """`prefetch` batches are decoded ahead; `max_broken` is a share of all the files."""
        self.data = data
        self.order = Order(
            len(data), batch_size=batch_size, repeats=augment.repeats, seed=seed, weights=weights
        )
        self.maker = BatchMaker(
            config=augment,
            seed=seed,
            mean=preprocessing.mean,
            std=preprocessing.std,
            classes=classes,
        )
        self.device = device
        self.prefetch = prefetch
        self.max_broken = max_broken
        self.broken: dict[Path, str] = {}
        """Files that could not be read so far, and the reasons."""
        decoder = Decoder(
            preprocessing=preprocessing,
            area=augment.random_resized_crop,
            ratio=augment.crop_ratio,
        )
        self._pool = DecoderPool(decoder, workers=workers)
        self._ahead: dict[int, tuple[Slots, Pending]] = {}

    @property
    def steps_per_epoch(self) -> float:
        """Number of batches that contain every image once, or `repeats` times."""
        return self.order.steps_per_epoch

    def batch(self, step: int) -> Batch:
        """Batch of this step; decoding of the following steps starts in the background."""
        wanted = range(step, step + 1 + (self.prefetch if self._pool.workers else 0))
        for other in [known for known in self._ahead if known not in wanted]:
            self._ahead.pop(other)[1].cancel()
        for each in wanted:
            if each not in self._ahead:
                self._ahead[each] = self._request(each)
        slots, pending = self._ahead.pop(step)
        return self._make(slots, *pending.wait())

    def batches(self, start: int = 0, stop: int | None = None) -> Iterator[Batch]:
        """Batches of the steps from `start` to before `stop`."""
        steps = itertools.count(start) if stop is None else range(start, stop)
        return map(self.batch, steps)

    def close(self) -> None:
        """Stop the decoding processes."""
        self._pool.close()

    def _request(self, step: int) -> tuple[Slots, Pending]:
        index, epoch = self.order.slots(step)
        seeds = draw_seeds(len(index), generator(self.maker.seed, "crop", step)).tolist()
        paths = (os.path.abspath(self.data.paths[i]) for i in index.tolist())
        pending = self._pool.submit(list(zip(paths, seeds, strict=True)))
        return Slots(step=step, index=index, epoch=epoch), pending

    def _make(self, slots: Slots, pixels: NDArray[np.uint8], reasons: Reasons) -> Batch:
        images = torch.from_numpy(pixels).to(self.device)
        index, epoch = slots.index, slots.epoch
        if reasons:
            self._report({self.data.paths[int(index[i])]: why for i, why in reasons.items()})
            source = _sources(slots, reasons)
            images, index, epoch = images[source.to(self.device)], index[source], epoch[source]
        labels = self.data.labels[index]
        return self.maker.make(images, labels, index=index, epoch=epoch, step=slots.step)

    def _report(self, found: dict[Path, str]) -> None:
        for path, reason in found.items():
            if path not in self.broken:
                log.warning("%s cannot be read and is skipped: %s", path, reason)
                self.broken[path] = reason
        if len(self.broken) > self.max_broken * len(self.data):
            path, reason = next(iter(self.broken.items()))
            raise DataError(
                f"{len(self.broken)} of {len(self.data)} images cannot be read, "
                f"more than the {self.max_broken:.0%} allowed; one is {path}: {reason}"
            )


def _sources(slots: Slots, reasons: Reasons) -> Int[Tensor, " B"]:
    """Source place of the image for each place of the batch: the next good one."""
    places = range(len(slots.index))
    source = next((place for place in places if place not in reasons), None)
    if source is None:
        raise DataError(f"step {slots.step}: none of its {len(places)} images can be read")
    sources = []
    for place in reversed(places):
        source = source if place in reasons else place
        sources.append(source)
    return torch.tensor(sources[::-1])
