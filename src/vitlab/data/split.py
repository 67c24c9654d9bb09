"""Survey of image files, and a part of the training images held out without duplicates."""

import hashlib
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeGuard

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor

from vitlab.data.content_split import held_by_content
from vitlab.data.duplicates import NEAR_LIMIT, Watch, compare_files, duplicate_groups, exact_groups
from vitlab.data.images import (
    ArraySet,
    ImageSet,
    IndexedSet,
    Labels,
    StoredSet,
    Survey,
    class_counts,
    one_of,
    task_of,
)
from vitlab.data.order import generator, seed_for
from vitlab.errors import ConfigError, DataError

# Survey of a set, reading every file once: unreadable files and duplicates. It takes as long as an
# epoch of decoding, so a run stores the result for resuming.


def survey_files(
    data: StoredSet, *, known: Survey | None = None, watch: Watch | None = None
) -> StoredSet:
    """Readable files of a set, with the survey.

    The files must match a `known` survey and are not read again; `watch` receives the progress.
    """
    if data.survey is not None or not len(data):
        return data
    folder, names = _folder(data), _names(data)
    fingerprint = _fingerprint(data, names)
    order = "" if is_indexed_alone(data) else _order(names, data.labels)
    if known is None:
        known = replace(_survey(data, names, fingerprint, watch), order=order)
    known = replace(known, folder=folder)
    if known.fingerprint != fingerprint:
        raise DataError(f"{folder} changed since the run began: {_changed(known, len(data))}")
    if known.order not in ("", order):
        raise DataError(
            f"{folder} changed since the run began: the same files in another order or with other "
            f"labels; bring it back as it was, or begin another run"
        )
    if known.broken and names:
        good = torch.tensor([i for i, name in enumerate(names) if name not in known.broken])
        _check_classes(data, good, known)
        data = data.subset(good)
    return replace(data, survey=known)


def surveyed_groups(data: StoredSet) -> Int[Tensor, " N"]:
    """Group index for each file of a surveyed set, the same for duplicates."""
    assert data.survey is not None
    if is_indexed_alone(data):
        return torch.from_numpy(exact_groups(data))
    groups = {name: same[0] for same in data.survey.duplicates for name in same}
    numbers: dict[str, int] = {}
    return torch.tensor(
        [
            numbers.setdefault(groups.get(name, name), len(numbers))
            for name in _names(data, data.survey.folder)
        ],
        dtype=torch.int64,
    )


def check_share(survey: Survey, max_broken: float) -> None:
    """Raise for a set with more than this share of unreadable files."""
    if len(survey.broken) > max_broken * survey.files:
        raise DataError(
            f"{len(survey.broken)} of {survey.files} images cannot be read, more than the "
            f"{max_broken:.0%} allowed (max_broken); {one_of(survey.broken_paths)}"
        )


def check_damage(data: IndexedSet, max_broken: float) -> None:
    """Raise for a set of which more than this share of the shards is damaged or missing."""
    damaged, files = data.index.header.damaged, data.index.header.files
    if len(damaged) > max_broken * len(files):
        name, reason = next(iter(damaged.items()))
        raise DataError(
            f"{len(damaged)} of {len(files)} shards were not read to their end, more than the "
            f"{max_broken:.0%} allowed (max_broken); one is {name}: {reason}"
        )


def _changed(known: Survey, files: int) -> str:
    found = f"{files} files instead of {known.files}"
    if files == known.files:
        found = f"{files} files as before, but with other names or sizes"
    return f"{found}; bring it back as it was, or begin another run"


def _survey(data: StoredSet, names: Sequence[str], fingerprint: str, watch: Watch | None) -> Survey:
    if is_indexed_alone(data):
        broken = _damaged(data)
        return Survey(folder="", files=len(data), fingerprint=fingerprint, broken=broken)
    groups, reasons = compare_files(data) if watch is None else compare_files(data, watch)
    members: dict[int, list[str]] = {}
    for i, group in enumerate(groups.tolist()):
        if i not in reasons:
            members.setdefault(group, []).append(names[i])
    return Survey(
        folder="",
        files=len(data),
        fingerprint=fingerprint,
        duplicates=tuple(tuple(same) for same in members.values() if len(same) > 1),
        broken=_damaged(data) | {names[i]: reason for i, reason in reasons.items()},
    )


def _damaged(data: StoredSet) -> dict[str, str]:
    """Shards that could not be read to their end."""
    return dict(data.index.header.damaged) if isinstance(data, IndexedSet) else {}


def is_indexed_alone(data: ImageSet) -> TypeGuard[IndexedSet]:
    """True for images in shards that are so many that the index alone describes them.

    They are not decoded ahead, and copies among them are found by the digests in the index.
    """
    return isinstance(data, IndexedSet) and len(data.index) > NEAR_LIMIT


def _folder(data: StoredSet) -> str:
    if isinstance(data, IndexedSet):
        return data.folder
    return os.path.commonpath([os.path.abspath(path.parent) for path in data.paths])


def _names(data: StoredSet, folder: str | None = None) -> list[str]:
    """Names below the folder of the set, or another; none for very many images in shards."""
    if isinstance(data, IndexedSet):
        if is_indexed_alone(data):
            return []
        return [data.index.name(number) for number in data.numbers.tolist()]
    start = len(os.path.join(_folder(data) if folder is None else folder, ""))
    return [os.path.abspath(path)[start:] for path in data.paths]


def _fingerprint(data: StoredSet, names: Sequence[str]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    if isinstance(data, IndexedSet):
        ends = data.numbers[[0, -1]].tolist()
        return f"{data.index.header.digest} {len(data)} {ends[0]} {ends[1]}"
    for name, path in sorted(zip(names, data.paths, strict=True)):
        try:
            size = path.stat().st_size
        except OSError:
            size = -1
        digest.update(os.fsencode(name) + b"\0%d\n" % size)
    return digest.hexdigest()


def _order(names: Sequence[str], labels: Tensor) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for name in names:
        digest.update(os.fsencode(name) + b"\n")
    digest.update(labels.numpy().tobytes())
    return digest.hexdigest()


def _check_classes(data: StoredSet, good: Tensor, survey: Survey) -> None:
    """Raise if a class lost all its images: the model would never see it."""
    if not len(good):
        one = one_of(survey.broken_paths)
        raise DataError(f"none of the {len(data)} images in {survey.folder} can be read; {one}")
    if data.labels.ndim > 1:
        return
    left = set(data.labels[good].tolist())
    lost = next((i for i, label in enumerate(data.labels.tolist()) if label not in left), None)
    if lost is not None:
        name = data.name(lost)
        reason = survey.broken_paths[Path(os.path.abspath(name) if survey.folder else name)]
        raise DataError(f"none of the images of one class can be read, such as {name}: {reason}")


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
    if not isinstance(train, ArraySet):
        train = survey_files(train)
    wanted = _wanted(len(train), share, count)
    if is_indexed_alone(train):
        return _held_apart(train, _held_by_content(train, share, wanted, seed))
    labels = strata(train.labels)
    quotas = class_quotas(np.bincount(labels), wanted)
    groups = duplicate_groups(train) if isinstance(train, ArraySet) else surveyed_groups(train)
    held = _choose(groups.numpy(), labels, quotas, seed)
    if task_of(train.labels) != "regression":
        _complete(held, groups.numpy(), train.labels, seed)
    if not held.any():
        raise DataError(
            f"none of {len(train)} images can be held out: each class is one image and its "
            "duplicates, or too few are wanted"
        )
    return _held_apart(train, held)


def _held_apart(images: ImageSet, held: NDArray[np.bool_]) -> tuple[ImageSet, ImageSet]:
    index = torch.from_numpy(held)
    return images.subset((~index).nonzero()[:, 0]), images.subset(index.nonzero()[:, 0])


def _held_by_content(
    train: IndexedSet, share: float | None, wanted: int, seed: int
) -> NDArray[np.bool_]:
    digests = train.index.digest[train.numbers.numpy()]
    classes = train.labels.numpy() if task_of(train.labels) == "single-label" else None
    key = seed_for(seed, "hold_out")
    return held_by_content(digests, classes, share=share, count=wanted, key=key)


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


def distinct_per_class(images: ImageSet, classes: int) -> list[int]:
    """Number of images of each class, where duplicates count as one."""
    groups = duplicate_groups(images) if isinstance(images, ArraySet) else surveyed_groups(images)
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
