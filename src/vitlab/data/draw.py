"""A few images of each class: what is left when data is scarce on purpose."""

import torch

from vitlab.data.images import ImageSet
from vitlab.data.random import generator
from vitlab.errors import DataError


def draw_per_class(images: ImageSet, count: int, *, seed: int) -> ImageSet:
    """`count` images of each class, drawn by the seed, in the order of the set."""
    labels = images.labels
    if labels.ndim != 1 or labels.is_floating_point():
        raise DataError("images_per_class is for images with one class each")
    chosen = []
    for label in labels.unique().tolist():
        found = (labels == label).nonzero()[:, 0]
        if len(found) < count:
            raise DataError(f"images_per_class {count}; class {label} has {len(found)} images")
        order = torch.randperm(len(found), generator=generator(seed, "draw", label))
        chosen.append(found[order[:count]])
    return images.subset(torch.cat(chosen).sort().values)
