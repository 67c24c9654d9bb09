"""Training and evaluation batches of any set of images."""

import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from vitlab.data.augment.config import AugmentConfig
from vitlab.data.augment.geometry import draw_seeds, random_crops, resize, resized_crop
from vitlab.data.images import ArraySet, FileSet, ImageSet, normalise
from vitlab.data.loading.batch import Batch, BatchMaker
from vitlab.data.loading.file_loader import FileLoader
from vitlab.data.loading.order import Order
from vitlab.data.loading.pool import DecoderPool
from vitlab.data.random import generator
from vitlab.images.decode import Decoder
from vitlab.images.preprocessing import Interpolation, Preprocessing

# Training batches of images in memory.


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
        """`size` is that of the model input; None: images unchanged."""
        self.order = Order(
            len(data), batch_size=batch_size, repeats=augment.repeats, seed=seed, weights=weights
        )
        self.maker = BatchMaker(config=augment, seed=seed, mean=mean, std=std, classes=classes)
        self.size = size or (data.images.shape[2], data.images.shape[3])
        self.interpolation = interpolation
        self.broken: dict[Path, str] = {}
        """Unreadable files: always empty here."""
        self._images = data.images.to(device)
        self._labels = data.labels

    @property
    def steps_per_epoch(self) -> float:
        """Number of batches that contain every image once, or `repeats` times."""
        return self.order.steps_per_epoch

    def batch(self, step: int) -> Batch:
        """Batch of this step."""
        index, epoch = self.order.slots(step)
        images = self._images.index_select(0, index.to(self._images.device))
        images = self._crop(resize(images, self.size, self.interpolation), step)
        return self.maker.make(images, self._labels[index], index=index, epoch=epoch, step=step)

    def batches(self, start: int = 0, stop: int | None = None) -> Iterator[Batch]:
        """Batches of the steps from `start` to before `stop`."""
        steps = itertools.count(start) if stop is None else range(start, stop)
        return map(self.batch, steps)

    def close(self) -> None:
        """No-op: there are no processes."""

    def _crop(self, images: Tensor, step: int) -> Tensor:
        config = self.maker.config
        if config.random_resized_crop is None:
            return images
        seeds = draw_seeds(len(images), generator(self.maker.seed, "crop", step))
        return resized_crop(images, random_crops(self.size, config, seeds))


# Every image once, in order, not augmented; the last batch may be smaller.


def batches_for_evaluation(
    data: ImageSet,
    *,
    batch_size: int,
    preprocessing: Preprocessing,
    device: torch.device | str = "cpu",
    workers: int = 0,
    prefetch: int = 2,
    broken: dict[Path, str] | None = None,
) -> Iterator[Batch]:
    """Images prepared by `preprocessing`, bit for bit; unreadable files are added to `broken`.

    A caller that passes `broken` must report them to the user.
    """
    if isinstance(data, ArraySet):
        return _array_batches(data, batch_size, preprocessing, device)
    found = {} if broken is None else broken
    return _file_batches(data, batch_size, preprocessing, device, workers, prefetch, found)


def _array_batches(
    data: ArraySet, batch_size: int, preprocessing: Preprocessing, device: torch.device | str
) -> Iterator[Batch]:
    for index in torch.arange(len(data)).split(batch_size):
        images = _prepare(data.images[index], preprocessing, device)
        yield Batch(images, data.labels[index].to(device), index)


def _prepare(
    images: Tensor, preprocessing: Preprocessing, device: torch.device | str
) -> Float[Tensor, "B C H W"]:
    as_they_are = (preprocessing.channels, *preprocessing.size)
    if tuple(images.shape[1:]) == as_they_are and preprocessing.crop == 1.0:
        return normalise(images.to(device), preprocessing.mean, preprocessing.std)
    one_by_one = [preprocessing.apply(image.permute(1, 2, 0).numpy()) for image in images.cpu()]
    return torch.from_numpy(np.stack(one_by_one)).to(device)


def _file_batches(
    data: FileSet,
    batch_size: int,
    preprocessing: Preprocessing,
    device: torch.device | str,
    workers: int,
    prefetch: int,
    broken: dict[Path, str],
) -> Iterator[Batch]:
    pool = DecoderPool(Decoder(preprocessing=preprocessing), workers=workers)
    indices = torch.arange(len(data)).split(batch_size)
    tasks = (
        (index, [(os.path.abspath(data.paths[i]), 0) for i in index.tolist()]) for index in indices
    )
    try:
        for index, pixels, reasons in pool.stream(tasks, ahead=prefetch):
            for place, reason in reasons.items():
                broken[data.paths[int(index[place])]] = reason
            good = torch.tensor(
                [i for i in range(len(index)) if i not in reasons], dtype=torch.long
            )
            if not len(good):
                continue
            images = torch.from_numpy(pixels)[good].to(device)
            images = normalise(images, preprocessing.mean, preprocessing.std)
            yield Batch(images, data.labels[index[good]].to(device), index[good])
    finally:
        pool.close()


__all__ = ["ArrayLoader", "Batch", "FileLoader", "batches_for_evaluation", "open_loader"]


def open_loader(
    data: ImageSet,
    *,
    batch_size: int,
    seed: int,
    augment: AugmentConfig,
    preprocessing: Preprocessing,
    classes: int,
    device: torch.device | str = "cpu",
    workers: int = 1,
    max_broken: float = 0.2,
    weights: Float[Tensor, " N"] | None = None,
) -> ArrayLoader | FileLoader:
    """Loader for this kind of set; workers are used for files only.

    `weights` are the relative frequencies of the images; None: each once an epoch.
    """
    if isinstance(data, ArraySet):
        return ArrayLoader(
            data,
            batch_size=batch_size,
            seed=seed,
            augment=augment,
            mean=preprocessing.mean,
            std=preprocessing.std,
            classes=classes,
            device=device,
            size=preprocessing.size,
            interpolation=preprocessing.interpolation,
            weights=weights,
        )
    return FileLoader(
        data,
        batch_size=batch_size,
        seed=seed,
        augment=augment,
        preprocessing=preprocessing,
        classes=classes,
        device=device,
        workers=workers,
        max_broken=max_broken,
        weights=weights,
    )
