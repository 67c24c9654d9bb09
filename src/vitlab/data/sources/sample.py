"""Four thousand photographs of CIFAR-10, part of the package: everything runs without a network."""

from functools import partial
from importlib.resources import as_file, files
from pathlib import Path

import numpy as np
import torch
from einops import rearrange
from jaxtyping import UInt8
from PIL import Image, features
from torch import Tensor

from vitlab.data.datasets import Dataset, DataSource
from vitlab.data.images import ArraySet
from vitlab.data.sources.cifar import CIFAR10_LABELS, LICENCE, SHAPE
from vitlab.errors import DataError
from vitlab.images.open import open_image

COUNTS = {"train": 300, "test": 100}
"""Number of images of each class; chosen by `scripts/make-sample`."""
COLUMNS = 50
"""Images per row of a sheet, class after class from the top."""


def open_sample(folder: Path) -> DataSource:
    """Sample dataset; `folder` is not used."""
    return DataSource(
        name="sample",
        labels=CIFAR10_LABELS,
        channels=3,
        image_size=SHAPE[1:],
        open_train=partial(_read, "train"),
        open_test=partial(_read, "test"),
        mean=(0.49024, 0.48146, 0.44663),
        std=(0.24553, 0.24266, 0.26065),
    )


def _read(split: str) -> ArraySet:
    with as_file(files("vitlab.data") / "sample" / f"{split}.webp") as path:
        images = read_sheet(path)
    labels = torch.arange(len(CIFAR10_LABELS)).repeat_interleave(COUNTS[split])
    return ArraySet(images=images, labels=labels)


def read_sheet(path: Path) -> UInt8[Tensor, "N C H W"]:
    """Images of a sheet, row after row."""
    if not features.check("webp"):
        raise DataError("this Pillow reads no WebP, which the sample is in; install its own wheel")
    with open_image(path) as sheet:
        pixels = torch.from_numpy(np.array(sheet))
    tiles = rearrange(pixels, "(y h) (x w) c -> (y x) c h w", h=SHAPE[1], w=SHAPE[2])
    return tiles.contiguous()


def write_sheet(images: UInt8[Tensor, "N C H W"], path: Path) -> None:
    """Save images, a whole number of rows, without loss."""
    sheet = rearrange(images, "(y x) c h w -> (y h) (x w) c", x=COLUMNS)
    Image.fromarray(sheet.contiguous().numpy()).save(
        path, "WEBP", lossless=True, quality=100, method=6
    )


SAMPLE = Dataset(
    name="sample",
    title="a part of cifar10 that is always there",
    licence=LICENCE,
    classes=len(CIFAR10_LABELS),
    images=(3_000, 1_000),
    open=open_sample,
)
