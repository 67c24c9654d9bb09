"""`vitlab data check`: contents of a folder of images, and problems for training."""

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from pathlib import Path

from vitlab.data.check.copies import Copies, copy_findings
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
)
from vitlab.images.open import pixel_limit

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


Images = list[tuple[ListedFile, ImageFacts]]


def check_folder(folder: Path, *, watch: Watch = lambda done, total: None) -> Check:
    """Inspect every file of a folder once; problems are part of the result, not errors."""
    listing = list_folder(folder)
    named = [file for file in listing.files if file.named_image]
    images: Images = []
    broken: list[tuple[ListedFile, BrokenFile]] = []
    paths = [folder / file.path for file in named]
    for file, found in zip(named, inspect_files(paths, watch), strict=True):
        if isinstance(found, BrokenFile):
            broken.append((file, found))
        else:
            images.append((file, found))
    counts = _counts(listing, Counter((file.label, file.split) for file, _ in images))
    copies = Copies(folder, images)
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
        folder=str(folder),
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
        yield from finding(problem, items, limit=pixel_limit() or 0)


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
    unnamed = [file for file in listing.files if not file.named_image]
    hidden = {file for file in unnamed if is_image(listing.root / file.path)}
    for name, files in (("hidden", hidden), ("other_files", set(unnamed) - hidden)):
        yield from finding(name, (Item(paths=(path,)) for path in sorted(f.path for f in files)))


Applies = Callable[[ListedFile, ImageFacts], bool]
Detail = Callable[[ListedFile, ImageFacts], str]


def _size(file: ListedFile, facts: ImageFacts) -> str:
    return f"{facts.width} x {facts.height} pixels"


def _small(side: float) -> tuple[Applies, Detail]:
    return lambda file, facts: min(facts.height, facts.width) < side, _size


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
