"""Training batches of images that are in memory."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from vitlab.data.augment import draw_seeds, random_crops, resized_crop
from vitlab.data.augment_config import AugmentConfig
from vitlab.data.batch import Batch, BatchMaker
from vitlab.data.images import ArraySet
from vitlab.data.order import Order
from vitlab.data.random import generator
from vitlab.data.resize import resize
from vitlab.preprocessing import Interpolation


class ArrayLoader:
    """`batch(step)` is a pure function of the data, the settings, the seed and the step."""

    def __init__(
        self,
        data: ArraySet,
        *,
        batch_size: int,
        seed: int,
        augment: AugmentConfig,
        mean: tuple[float, ...],
        std: tuple[float, ...],
        classes: int,
        device: torch.device | str = "cpu",
        size: tuple[int, int] | None = None,
        interpolation: Interpolation = "bicubic",
        weights: Float[Tensor, " N"] | None = None,
    ) -> None:
        """`size` is what the model reads; None: images as they are."""
        self.order = Order(
            len(data), batch_size=batch_size, repeats=augment.repeats, seed=seed, weights=weights
        )
        self.maker = BatchMaker(config=augment, seed=seed, mean=mean, std=std, classes=classes)
        self.size = size or (data.images.shape[2], data.images.shape[3])
        self.interpolation = interpolation
        self.broken: dict[Path, str] = {}
        """Files that could not be read: none of them, here."""
        self._images = data.images.to(device)
        self._labels = data.labels

    @property
    def steps_per_epoch(self) -> float:
        """Batches in which every image stands once, or `repeats` times."""
        return self.order.steps_per_epoch

    def batch(self, step: int) -> Batch:
        """The batch of this step."""
        index, epoch = self.order.slots(step)
        images = self._images.index_select(0, index.to(self._images.device))
        images = self._crop(resize(images, self.size, self.interpolation), step)
        return self.maker.make(images, self._labels[index], index=index, epoch=epoch, step=step)

    def batches(self, start: int = 0, stop: int | None = None) -> Iterator[Batch]:
        """The batches of the steps from `start` to before `stop`."""
        steps = itertools.count(start) if stop is None else range(start, stop)
        return map(self.batch, steps)

    def close(self) -> None:
        """Nothing to end, here."""

    def _crop(self, images: Tensor, step: int) -> Tensor:
        config = self.maker.config
        if config.random_resized_crop is None:
            return images
        seeds = draw_seeds(len(images), generator(self.maker.seed, "crop", step))
        return resized_crop(images, random_crops(self.size, config, seeds))
