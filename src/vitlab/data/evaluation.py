"""Every image once, in order, as it is; the last batch holds what is left."""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from vitlab.data.batch import Batch, normalise
from vitlab.data.decode import Decoder
from vitlab.data.images import ArraySet, FileSet, ImageSet
from vitlab.data.pool import DecoderPool
from vitlab.preprocessing import Preprocessing


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
    """Images as `preprocessing` prepares them, bit for bit; files it cannot read go to `broken`.

    Whoever passes `broken` tells the user of them.
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
