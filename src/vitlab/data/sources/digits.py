"""Handwritten digits of 8 x 8 pixels, as in scikit-learn: part of the package."""

import gzip
from functools import partial
from importlib.resources import files
from pathlib import Path

import numpy as np

from vitlab.data.datasets import Dataset, DataSource
from vitlab.data.images import ArraySet, read_records

SHAPE = (1, 8, 8)
TOP = 16
"""The brightest value; 0 is the darkest."""
TRAIN = 1437
"""Number of training images, the first ones: neighbours in the file are by one writer."""


def open_digits(folder: Path) -> DataSource:
    """Digits dataset; `folder` is not used."""
    return DataSource(
        name="digits",
        labels=tuple("0123456789"),
        channels=1,
        image_size=SHAPE[1:],
        open_train=partial(_read, slice(None, TRAIN)),
        open_test=partial(_read, slice(TRAIN, None)),
        mean=(0.30543,),
        std=(0.37534,),
    )


def _read(part: slice) -> ArraySet:
    content = gzip.decompress((files("vitlab.data") / "digits" / "digits.bin.gz").read_bytes())
    found = read_records(
        [("digits.bin.gz", np.frombuffer(content, np.uint8))], shape=SHAPE, classes=10
    )
    levels = (found.images.int() * 255 + TOP // 2) // TOP
    return ArraySet(images=levels.byte()[part], labels=found.labels[part])


DIGITS = Dataset(
    name="digits",
    title="8 x 8 grey handwritten digits",
    licence="CC BY 4.0",
    classes=10,
    images=(1_437, 360),
    open=open_digits,
)
