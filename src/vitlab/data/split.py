"""Hold out a part of the training images, without duplicates in the rest."""

from collections import Counter

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from vitlab.data.class_counts import class_counts
from vitlab.data.duplicates import duplicate_groups
from vitlab.data.images import FileSet, ImageSet, Labels, task_of
from vitlab.data.random import generator
from vitlab.data.survey import known_groups, surveyed
from vitlab.errors import ConfigError, DataError

# Strata: groups of images that are split in proportion.

BINS = 10
"""Number of ranges of a value that are kept in proportion."""
IN_A_BIN = 10
"""Minimum number of images in each of these."""


def strata(labels: Labels) -> NDArray[np.int64]:
    """Stratum index of each image: its class, its rarest label, or its range of values."""
    task = task_of(labels)
    if task == "single-label":
        return labels.numpy()
    return rarest_label(labels.numpy()) if task == "multi-label" else _ranges(labels[:, 0].numpy())


def rarest_label(labels: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Rarest label of each image; without any label, one index more."""
    images, classes = labels.shape
    counts = labels.sum(axis=0)
    rarity = np.where(labels, counts, images + 1)
    return np.where(labels.any(axis=1), rarity.argmin(axis=1), classes)


def _ranges(values: NDArray[np.float32]) -> NDArray[np.int64]:
    """Ranges with equally many images, numbered from the lowest values up."""
    bins = min(BINS, max(1, len(values) // IN_A_BIN))
    ranks = np.empty(len(values), np.int64)
    ranks[np.argsort(values, kind="stable")] = np.arange(len(values))
    return ranks * bins // len(values)


def hold_out(
    train: ImageSet, *, share: float | None = None, count: int | None = None, seed: int
) -> tuple[ImageSet, ImageSet]:
    """Remaining and held-out images: each stratum in proportion, duplicates on one side.

    `share` of the images or `count` of them; fewer if a class is nothing but duplicates, more if a
    small class would have no image on one side. A class of a single distinct image stays in the
    remaining part. Unreadable files are on neither side.
    """
    if isinstance(train, FileSet):
        train = surveyed(train)
    wanted = _wanted(len(train), share, count)
    labels = strata(train.labels)
    quotas = class_quotas(np.bincount(labels), wanted)
    groups = known_groups(train) if isinstance(train, FileSet) else duplicate_groups(train)
    held = _choose(groups.numpy(), labels, quotas, seed)
    if task_of(train.labels) != "regression":
        _complete(held, groups.numpy(), train.labels, seed)
    if not held.any():
        raise DataError(
            f"none of {len(train)} images can be held out: each class is one image and its "
            "duplicates, or too few are wanted"
        )
    index = torch.from_numpy(held)
    return train.subset((~index).nonzero()[:, 0]), train.subset(index.nonzero()[:, 0])


def _wanted(images: int, share: float | None, count: int | None) -> int:
    if (share is None) == (count is None):
        raise DataError("hold_out takes either a share or a count")
    if share is not None:
        if not 0.0 < share < 1.0:
            raise DataError(f"share {share} is not between 0 and 1")
        count = max(round(share * images), 1)
    assert count is not None
    if not 1 <= count < images:
        raise DataError(f"{count} of {images} images cannot be held out; valid: 1 to {images - 1}")
    return count


def class_quotas(sizes: NDArray[np.int64], wanted: int) -> NDArray[np.int64]:
    """Number of images of each class in `wanted`: in proportion, largest remainders rounded up."""
    exact = sizes * wanted
    total = int(sizes.sum())
    quotas = exact // total
    order = np.lexsort((-sizes, -(exact % total)))
    quotas[order[: wanted - int(quotas.sum())]] += 1
    return np.minimum(quotas, np.maximum(sizes - 1, 0))  # one of each class remains for training


def _choose(
    groups: NDArray[np.int64], labels: NDArray[np.int64], quotas: NDArray[np.int64], seed: int
) -> NDArray[np.bool_]:
    """Take whole groups, in an order drawn from the seed, as long as they fit into the quotas."""
    held = np.zeros(len(labels), np.bool_)
    left = quotas.tolist()
    for images in _members(groups, seed):
        needed = Counter(labels[images].tolist())
        if all(left[label] >= number for label, number in needed.items()):
            held[images] = True
            for label, number in needed.items():
                left[label] -= number
    return held


def _members(groups: NDArray[np.int64], seed: int) -> list[list[int]]:
    """Images of each group, in an order drawn from the seed."""
    order = torch.randperm(len(groups), generator=generator(seed, "hold_out")).numpy()
    members: dict[int, list[int]] = {}
    for image, group in zip(order.tolist(), groups[order].tolist(), strict=True):
        members.setdefault(group, []).append(image)
    return list(members.values())


def _complete(
    held: NDArray[np.bool_], groups: NDArray[np.int64], labels: Labels, seed: int
) -> None:
    """Give both sides every class with two distinct images: move the smallest sufficient group.

    The remaining part comes first: a class that cannot be learnt is worse than one not evaluated.
    """
    total = class_counts(labels)
    members: list[list[int]] = []
    for side in (False, True):
        here = class_counts(labels[torch.from_numpy(held == side)], len(total))
        absent = ((total > 0) & (here == 0)).nonzero()[:, 0].tolist()
        if absent and not members:
            members = sorted(_members(groups, seed), key=len)
        place = {image: number for number, images in enumerate(members) for image in images}
        for label in absent:
            if here[label]:
                continue  # also held by a group that another class needed
            having = (labels[:, label] if labels.ndim > 1 else labels == label).nonzero()[:, 0]
            for number in sorted({place[image] for image in having.tolist()}):
                counts = class_counts(labels[members[number]], len(total))
                left = total - here - counts
                if not side or bool((left[counts > 0] > 0).all()):
                    held[members[number]] = side
                    here += counts
                    break


def pictures_per_class(images: ImageSet, classes: int) -> list[int]:
    """Number of images of each class, where duplicates count as one."""
    groups = known_groups(images) if isinstance(images, FileSet) else duplicate_groups(images)
    pairs = set(zip(images.labels.tolist(), groups.tolist(), strict=True))
    counts = Counter(label for label, _ in pairs)
    return [counts[label] for label in range(classes)]


# A few images of each class: for training with little data.


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


# Weights of classes or images that balance rare and frequent classes.


def class_weights(labels: Int[Tensor, " N"], classes: int) -> Float[Tensor, " classes"]:
    """Inverse to the number of images; an average image has weight 1, a class without images 0."""
    counts = torch.bincount(labels, minlength=classes).double()
    present = int((counts > 0).sum())
    return torch.where(counts > 0, len(labels) / (present * counts), 0.0).float()


def label_weights(labels: Bool[Tensor, "N classes"]) -> Float[Tensor, "2 classes"]:
    """Weights of images without and with each label, equal in sum; 1 on average.

    A label that all images have, or none, is not balanced.
    """
    having = labels.double().sum(dim=0)
    counts = torch.stack([len(labels) - having, having])
    return torch.where(counts.min(dim=0).values > 0, len(labels) / (2 * counts), 1.0).float()


def image_weights(labels: Tensor) -> Float[Tensor, " N"]:
    """Sampling weight of each image: equal over classes; for several labels, by the rarest."""
    if labels.is_floating_point():
        raise ConfigError("balance is for classes; these images have values: valid: balance=none")
    kinds = labels if labels.ndim == 1 else torch.from_numpy(rarest_label(labels.numpy()))
    return class_weights(kinds, int(kinds.max()) + 1)[kinds]
