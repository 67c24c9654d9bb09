"""`vitlab data check`: contents of a folder of images, and problems for training."""

import logging
import os
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, combinations, groupby
from pathlib import Path

import numpy as np

from vitlab.data.check.findings import KINDS, Finding, Item, class_findings, finding
from vitlab.data.check.inspect import (
    BrokenFile,
    ImageFacts,
    ListedFile,
    Listing,
    Watch,
    inspect_files,
    is_image,
    list_folder,
    list_index,
)
from vitlab.data.duplicates import (
    NEAR_LIMIT,
    SIDE,
    Numbers,
    equal_keys,
    join_alike,
    same_files,
    unite,
)
from vitlab.data.shards.layout import index_at
from vitlab.data.sources.archive import is_archive, unpack
from vitlab.data.sources.folder import image_files
from vitlab.images.contact_sheet import Tile, write_contact_sheet
from vitlab.images.find import REMEDY, foreign_formats
from vitlab.images.open import INSTALL_HEIF, ImageFile, pixel_limit
from vitlab.images.statistics import tile_image

log = logging.getLogger(__name__)


Images = list[tuple[ListedFile, ImageFacts]]


class Copies:
    """Groups of duplicate images, exact or visual."""

    def __init__(self, images: Images, equal: Iterable[Sequence[int]]) -> None:
        """`equal` are groups of images that are equal in every bit."""
        self.files = [file for file, _ in images]
        self.exact: Numbers = np.arange(len(images), dtype=np.int64)
        for same in equal:
            unite(self.exact, np.array(same[:-1]), np.array(same[1:]))
        self.near = self.exact.copy()
        if len(images) > NEAR_LIMIT:
            log.warning("%d images are many: only equal files are looked for", len(images))
        elif images:
            which = np.unique(self.exact)  # the first of exact copies represents all
            small = np.array([images[i][1].small for i in which], np.uint8).reshape(-1, SIDE, SIDE)
            self.near = join_alike(self.near, which, small)

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


SMALL = 32
"""Pixels of a side below which an image is suspicious, if most are at least twice as large."""
TINY = 8
"""Pixels of a side below which an image is always suspicious."""
NARROW = 4
"""Aspect ratio from which on an image counts as a strip."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Range:
    """Range of a number over the images."""

    least: int
    median: float
    most: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """Findings of a check of a folder."""

    folder: str
    images: int
    """Images that can be read and belong to a class."""
    files: int
    """All files, of any kind."""
    splits: tuple[str, ...]
    """`("",)` if there are only class folders."""
    counts: dict[str, dict[str, int]]
    """Readable images by class and split."""
    height: Range | None
    width: Range | None
    findings: tuple[Finding, ...]

    @property
    def serious(self) -> bool:
        """True if any finding hurts training."""
        return any(found.serious for found in self.findings)


def check_folder(data: str | os.PathLike[str], *, watch: Watch = lambda done, total: None) -> Check:
    """Inspect every image of a folder, or of shards or tables, once; problems are no errors."""
    folder, index = Path(data), index_at(os.fspath(data))
    folder = unpack(folder) if is_archive(folder) else folder
    listing = list_folder(folder) if index is None else list_index(index)
    named = [file for file in listing.files if file.named_image]
    numbers = range(len(named))
    sources: list[ImageFile] = (
        [folder / file.path for file in named] if index is None else [*map(index.image, numbers)]
    )
    images: Images = []
    readable: list[int] = []
    broken: list[tuple[ListedFile, BrokenFile]] = []
    for number, found in zip(numbers, inspect_files(sources, watch), strict=True):
        if isinstance(found, BrokenFile):
            broken.append((named[number], found))
        else:
            images.append((named[number], found))
            readable.append(number)
    for name, reason in {} if index is None else index.header.damaged.items():
        shard = ListedFile(path=name, split="", label=None, named_image=False)
        broken.append((shard, BrokenFile("unreadable", reason)))
    counts = _counts(listing, Counter((file.label, file.split) for file, _ in images))
    if index is None:
        equal = same_files([folder / file.path for file, _ in images])
    else:
        equal = equal_keys(index.digest[readable].tolist())
    copies = Copies(images, equal)
    findings = chain(
        class_findings(listing, counts, _counts(listing, copies.different())),
        copy_findings(copies),
        _broken_findings(broken),
        _image_findings(images),
        _other_findings(listing),
    )
    order = list(KINDS)
    sizes = [facts for _, facts in images]
    return Check(
        folder=str(folder) if index is None else os.fspath(data),
        images=sum(file.label is not None for file, _ in images),
        files=len(listing.files),
        splits=tuple(listing.classes),
        counts=counts,
        height=_range([facts.height for facts in sizes]),
        width=_range([facts.width for facts in sizes]),
        findings=tuple(sorted(findings, key=lambda found: order.index(found.name))),
    )


def _counts(listing: Listing, found: Counter[tuple[str | None, str]]) -> dict[str, dict[str, int]]:
    """Numbers by class and split, with a 0 for a class without any."""
    labels = sorted(set(chain(*listing.classes.values())))
    return {
        label: {
            split: found[label, split] for split, own in listing.classes.items() if label in own
        }
        for label in labels
    }


def _range(values: Sequence[int]) -> Range | None:
    if not values:
        return None
    return Range(least=min(values), median=statistics.median(values), most=max(values))


def _broken_findings(broken: Iterable[tuple[ListedFile, BrokenFile]]) -> Iterator[Finding]:
    ordered = sorted(broken, key=lambda pair: pair[1].problem)
    for problem, members in groupby(ordered, key=lambda pair: pair[1].problem):
        items = (Item(paths=(file.path,), detail=found.reason) for file, found in members)
        yield from finding(problem, items, limit=pixel_limit() or 0, install=INSTALL_HEIF)


def _image_findings(images: Images) -> Iterator[Finding]:
    sides = [min(facts.height, facts.width) for _, facts in images]
    small = max(TINY, min(SMALL, statistics.median(sides) / 2)) if sides else TINY
    for name, (applies, detail) in (TRAITS | {"small": _small(small)}).items():
        items = (
            Item(paths=(file.path,), detail=detail(file, facts))
            for file, facts in images
            if applies(file, facts)
        )
        yield from finding(name, items, side=small, ratio=NARROW)


def _other_findings(listing: Listing) -> Iterator[Finding]:
    others = [file for file in listing.files if not file.named_image]
    formats = {file: foreign_formats([file.path]).partition(" ")[2] for file in others}
    unreadable = [Item(paths=(file.path,), detail=name) for file, name in formats.items() if name]
    counts = foreign_formats(file.path for file in others)
    yield from finding("foreign", unreadable, formats=counts, remedy=REMEDY)
    unnamed = [file for file in others if not formats[file]]
    hidden = {file for file in unnamed if is_image(listing.root / file.path)}
    for name, files in (("hidden", hidden), ("other_files", set(unnamed) - hidden)):
        yield from finding(name, (Item(paths=(path,)) for path in sorted(f.path for f in files)))


Applies = Callable[[ListedFile, ImageFacts], bool]
Detail = Callable[[ListedFile, ImageFacts], str]


def _size(file: ListedFile, facts: ImageFacts) -> str:
    return f"{facts.width} x {facts.height} pixels"


def _small(side: float) -> tuple[Applies, Detail]:
    """Test for images that are too small; the one row of a signal is not."""

    def applies(file: ListedFile, facts: ImageFacts) -> bool:
        signal = facts.format == "NPY" and facts.height == 1
        return facts.width < side or (facts.height < side and not signal)

    return applies, _size


TRAITS: dict[str, tuple[Applies, Detail]] = {
    "narrow": (
        lambda file, facts: (
            max(facts.height, facts.width) > NARROW * min(facts.height, facts.width)
        ),
        _size,
    ),
    "wrong_ending": (
        lambda file, facts: not facts.has_ending_of_its_format(file.path),
        lambda file, facts: f"holds {facts.format}",
    ),
    "rotated": (
        lambda file, facts: facts.orientation != 1,
        lambda file, facts: f"orientation {facts.orientation}",
    ),
    "grey": (
        lambda file, facts: facts.mode in ("1", "L", "LA", "La") or facts.mode.startswith("I"),
        lambda file, facts: f"mode {facts.mode}",
    ),
    "cmyk": (lambda file, facts: facts.mode == "CMYK", lambda file, facts: facts.format),
    "deep": (lambda file, facts: facts.deep, lambda file, facts: f"mode {facts.mode}"),
    "transparent": (
        lambda file, facts: facts.transparent,
        lambda file, facts: f"mode {facts.mode}",
    ),
    "palette": (
        lambda file, facts: facts.mode == "P" and not facts.transparent and facts.format != "GIF",
        lambda file, facts: facts.format,
    ),
    "loose": (lambda file, facts: file.label is None, lambda file, facts: ""),
}
"""Traits of suspicious images, their conditions, and their messages."""


COLUMNS = 6
"""Examples of a finding: one row."""
CLASSES = 2 * COLUMNS
"""Number of classes of which an image is shown."""


def write_check_sheet(path: Path, check: Check) -> None:
    """Write the contact sheet of a check as a PNG."""
    found, serious = len(check.findings), sum(found.serious for found in check.findings)
    title = (
        f"{Path(check.folder).absolute().name}: {check.images:,} images in "
        f"{len(check.counts):,} classes; {found or 'no'} {'finding' if found == 1 else 'findings'}"
        f"{f', {serious} serious' if serious else ''}"
    )
    write_contact_sheet(path, _tiles(check), title=title, columns=COLUMNS)


def _tiles(check: Check) -> Iterator[Tile]:
    root = Path(check.folder)
    for found in check.findings:
        yield from list(_examples(root, found))[:COLUMNS]
    yield from _classes(root, check)


def _examples(root: Path, found: Finding) -> Iterator[Tile]:
    """Cases that are files; two each for copies."""
    for item in found.items[:COLUMNS]:
        for path in (item.paths[0], item.paths[-1]) if len(item.paths) > 1 else item.paths:
            if (root / path).is_file() and found.name != "other_files":
                yield Tile(
                    image=tile_image(root / path),
                    caption=f"{path}\n{item.detail}".strip(),
                    mark="bad" if found.serious else "warn",
                    group=found.line,
                )


def _classes(root: Path, check: Check) -> Iterator[Tile]:
    """First image of each of some classes."""
    for label, splits in list(check.counts.items())[:CLASSES]:
        split = next(iter(splits))
        first = min(image_files(root / split / label), default=None)
        if first is not None:
            count = sum(splits.values())
            yield Tile(
                image=tile_image(Path(first)),
                caption=f"{label}\n{count:,} {'image' if count == 1 else 'images'}",
                group="An image of each class"
                if len(check.counts) <= CLASSES
                else f"An image of each of {CLASSES} of the {len(check.counts):,} classes",
            )
