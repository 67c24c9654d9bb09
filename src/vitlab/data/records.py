"""Images as fixed records of label bytes and pixel bytes, channel after channel: CIFAR's layout."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from vitlab.data.images import ArraySet
from vitlab.errors import DataError


def read_records(
    parts: Sequence[tuple[str, NDArray[np.uint8]]],
    *,
    shape: tuple[int, int, int],
    classes: int,
    label_bytes: int = 1,
) -> ArraySet:
    """The images of several files' bytes; the last label byte is the one that counts."""
    record = label_bytes + shape[0] * shape[1] * shape[2]
    for name, part in parts:
        if not part.size or part.size % record:
            raise DataError(
                f"{name} has {part.size} bytes, no whole number of {record}-byte records"
            )
    rows = [part.reshape(-1, record) for _, part in parts]
    total = sum(map(len, rows))
    images = torch.empty((total, *shape), dtype=torch.uint8)
    labels = torch.empty(total, dtype=torch.int64)
    start = 0
    for (name, _), part in zip(parts, rows, strict=True):
        end = start + len(part)
        images[start:end].numpy()[:] = part[:, label_bytes:].reshape(-1, *shape)
        labels[start:end].numpy()[:] = part[:, label_bytes - 1]
        if int(part[:, label_bytes - 1].max()) >= classes:
            raise DataError(f"{name} has a label beyond the {classes} classes")
        start = end
    return ArraySet(images=images, labels=labels)
