"""Features of images in memory or on a disk, a batch at a time."""

import os
from collections.abc import Iterable, Iterator
from itertools import islice

import numpy as np
import torch
from jaxtyping import Float32
from PIL import Image

from vitlab.errors import InputError
from vitlab.models.readout import Readout
from vitlab.preprocessing import Preprocessing, Source


def image_features(
    readout: Readout,
    preprocessing: Preprocessing,
    images: Source | Iterable[Source],
    *,
    batch_size: int,
) -> Float32[np.ndarray, "B ..."]:
    """The features of one image or of many, in their order; one that is unreadable is an error."""
    if batch_size < 1:
        raise InputError(f"batch_size {batch_size}; valid: at least 1")
    single = isinstance(images, str | os.PathLike | Image.Image | np.ndarray)
    sources: Iterator[Source] = iter([images] if single else images)  # type: ignore[arg-type, list-item]
    device = next(readout.model.parameters()).device
    found = []
    while batch := list(islice(sources, batch_size)):
        pixels = np.stack([preprocessing.apply(source) for source in batch])
        with torch.inference_mode():
            found.append(readout(torch.from_numpy(pixels).to(device)).float().cpu())
    if not found:
        raise InputError("no image; valid: at least 1")
    return torch.cat(found).numpy()
