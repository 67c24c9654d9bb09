"""Duplicate images in a folder: across splits, across classes, or within a class."""

import logging
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations
from pathlib import Path

import numpy as np

from vitlab.data.check.findings import Finding, Item, finding
from vitlab.data.check.inspect import ImageFacts, ListedFile
from vitlab.data.duplicates import NEAR_LIMIT, SIDE, Numbers, describe, join_near, same_files, unite

Images = Sequence[tuple[ListedFile, ImageFacts]]

log = logging.getLogger(__name__)


class Copies:
    """Groups of duplicate images, exact or visual."""

    def __init__(self, folder: Path, images: Images) -> None:
        self.files = [file for file, _ in images]
        self.exact: Numbers = np.arange(len(images), dtype=np.int64)
        for same in same_files([folder / file.path for file in self.files]):
            unite(self.exact, np.array(same[:-1]), np.array(same[1:]))
        self.near = self.exact.copy()
        if len(images) > NEAR_LIMIT:
            log.warning("%d images are many: only equal files are looked for", len(images))
        elif images:
            which = np.unique(self.exact)  # the first of exact copies represents all
            small = np.array([images[i][1].small for i in which], np.uint8).reshape(-1, SIDE, SIDE)
            self.near = join_near(self.near, which, describe(small))

    def groups(self) -> Iterator[list[int]]:
        """Groups of images with duplicates."""
        members: defaultdict[int, list[int]] = defaultdict(list)
        for image, group in enumerate(self.near.tolist()):
            members[group].append(image)
        return (found for found in members.values() if len(found) > 1)

    def different(self) -> Counter[tuple[str | None, str]]:
        """Number of images by class and split, where copies count as one."""
        places = {
            (f.label, f.split, g) for f, g in zip(self.files, self.near.tolist(), strict=True)
        }
        return Counter((label, split) for label, split, _ in places)

    def item(self, images: Iterable[int]) -> Item:
        """These images as one case, noting if they differ."""
        chosen = list(images)
        equal = len({int(self.exact[i]) for i in chosen}) == 1
        paths = tuple(self.files[i].path for i in chosen)
        return Item(paths=paths, detail="bit for bit" if equal else "nearly the same")

    def repeated(self, images: Iterable[int], among: Iterable[int]) -> int:
        """Number of the images that also occur exactly among the others."""
        known = {int(self.exact[i]) for i in among}
        return sum(int(self.exact[i]) in known for i in images)


def copy_findings(copies: Copies) -> Iterator[Finding]:
    """Effects of copies: on the accuracy, on the labels, on the weight of an image."""
    groups = list(copies.groups())
    splits = list(dict.fromkeys(file.split for file in copies.files if file.label is not None))
    for first, second in combinations(splits, 2):
        yield from _across(copies, groups, first, second)
    labels = [{copies.files[i].label for i in group} - {None} for group in groups]
    conflicts = [group for group, found in zip(groups, labels, strict=True) if len(found) > 1]
    yield from finding("conflicting", map(copies.item, conflicts))
    yield from _within(copies, groups)


def _across(
    copies: Copies, groups: Iterable[list[int]], first: str, second: str
) -> Iterator[Finding]:
    items, count, exact = [], 0, 0
    for group in groups:
        one, other = ([i for i in group if copies.files[i].split == s] for s in (first, second))
        if one and other:
            items.append(copies.item([*one, *other]))
            count += len(other)
            exact += copies.repeated(other, one)
    yield from finding("across_splits", items, count=count, exact=exact, first=first, second=second)


def _within(copies: Copies, groups: Iterable[list[int]]) -> Iterator[Finding]:
    """Copies beyond the first in the same class of the same split."""
    items, count, exact = [], 0, 0
    for group in groups:
        places: defaultdict[tuple[str, str | None], list[int]] = defaultdict(list)
        for i in group:
            places[copies.files[i].split, copies.files[i].label].append(i)
        for same in places.values():
            if len(same) > 1:
                items.append(copies.item(same))
                count += len(same) - 1
                exact += len(same) - len({int(copies.exact[i]) for i in same})
    yield from finding("copies", items, count=count, exact=exact)
