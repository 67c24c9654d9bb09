"""Features of images in memory or on a disk, a batch at a time."""

import io
from collections.abc import Iterable
from itertools import islice

import numpy as np
import torch
from jaxtyping import Float32

from vitlab.errors import InputError
from vitlab.inference.pictures import Given, Picture, as_pictures, read_picture
from vitlab.models.readout import Readout
from vitlab.preprocessing import Preprocessing


def image_features(
    readout: Readout,
    preprocessing: Preprocessing,
    images: Given | Iterable[Given],
    *,
    batch_size: int,
) -> Float32[np.ndarray, "B ..."]:
    """The features of one image or of many, in their order; one that is unreadable is an error."""
    if batch_size < 1:
        raise InputError(f"batch_size {batch_size}; valid: at least 1")
    sources = iter(as_pictures(images, preprocessing))
    device = next(readout.model.parameters()).device
    found = []
    while batch := list(islice(sources, batch_size)):
        pixels = np.stack([_prepared(source, preprocessing) for source in batch])
        with torch.inference_mode():
            found.append(readout(torch.from_numpy(pixels).to(device)).float().cpu())
    if not found:
        raise InputError("no image; valid: at least 1")
    return torch.cat(found).numpy()


def _prepared(source: Picture, preprocessing: Preprocessing) -> Float32[np.ndarray, "C H W"]:
    if isinstance(source, io.BytesIO):
        return preprocessing.normalise(read_picture(source, preprocessing))
    return preprocessing.apply(source)
