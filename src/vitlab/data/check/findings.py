"""Kinds of problems in a folder of images, and their meaning in plain words."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain

from vitlab.data.check.inspect import WHOLE, Listing
from vitlab.data.shards.layout import TEST, TRAIN
from vitlab.data.sources.folder import folded


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """One kind of finding."""

    noun: str
    """Counted noun, in the singular."""
    advice: str
    """Text after the count and the noun; braces are filled in."""
    plural: str = ""
    serious: bool = False
    """True if it hurts training, or the trust in the result."""
    unread: bool = False
    """True if the files take no part in training, by their name or place."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Item:
    """One case: a file, or several that belong together."""

    paths: tuple[str, ...]
    """Paths below the checked folder."""
    detail: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """A finding, with every case of it."""

    name: str
    serious: bool
    unread: bool
    count: int
    noun: str
    advice: str
    items: tuple[Item, ...]

    @property
    def line(self) -> str:
        """Finding as a sentence."""
        return f"{self.count:,} {self.noun} {self.advice}"


def finding(
    name: str, items: Iterable[Item], *, count: int | None = None, **values: object
) -> list[Finding]:
    """Finding of a kind, or None without cases."""
    kind, found = KINDS[name], tuple(items)
    if not found:
        return []
    number = len(found) if count is None else count
    return [
        Finding(
            name=name,
            serious=kind.serious,
            unread=kind.unread,
            count=number,
            noun=kind.noun if number == 1 else kind.plural or f"{kind.noun}s",
            advice=kind.advice.format(**values),
            items=found,
        )
    ]


KINDS = {
    "no_classes": Kind(
        noun="folder",
        advice="without class folders: training needs one folder of images for each class",
        serious=True,
    ),
    "one_class": Kind(
        noun="folder",
        advice="with a single class; training needs two or more",
        serious=True,
    ),
    "case_classes": Kind(
        noun="group",
        advice="of classes whose names differ only in case or accents' encoding: "
        "training refuses them; rename or merge",
        serious=True,
    ),
    "untrained_classes": Kind(
        noun="class",
        plural="classes",
        advice="in {split} but not in train: training refuses the folder",
        serious=True,
    ),
    "unjudged_classes": Kind(
        noun="class",
        plural="classes",
        advice="of train without images in {split}: their accuracy could not be measured; "
        "training refuses the folder without --set judge_all=false",
        serious=True,
    ),
    "empty_classes": Kind(
        noun="class",
        plural="classes",
        advice="without a readable image: training on them is impossible",
        serious=True,
    ),
    "unsplit": Kind(
        noun="class",
        plural="classes",
        advice="too small to be split: training needs at least {least} different images of each "
        "class ({parts})",
        serious=True,
    ),
    "imbalance": Kind(
        noun="class",
        plural="classes",
        advice="with less than a tenth of the images of the largest: the model will favour "
        "large classes, and the accuracy will hide it; weigh or balance them",
        serious=True,
    ),
    "across_splits": Kind(
        noun="image",
        advice="of {second} also in {first} ({exact:,} bit for bit): the accuracy on {second} "
        "will look better than it is",
        serious=True,
    ),
    "conflicting": Kind(
        noun="picture",
        advice="in more than one class: all but one of the labels must be wrong",
        serious=True,
    ),
    "truncated": Kind(
        noun="file",
        advice="cut short, as by a broken download: skipped in training; get again or delete",
        serious=True,
    ),
    "not_images": Kind(
        noun="file",
        advice="named like an image, with something else inside: skipped in training; delete",
        serious=True,
    ),
    "no_decoder": Kind(
        noun="HEIC photograph",
        advice="without a decoder: skipped in training; {install}, or convert to JPEG",
        serious=True,
    ),
    "foreign": Kind(
        noun="file",
        advice="in formats that are not read ({formats}): skipped in training; {remedy}",
        serious=True,
    ),
    "unreadable": Kind(
        noun="file",
        advice="that cannot be read: skipped in training; repair or delete",
        serious=True,
    ),
    "too_large": Kind(
        noun="image",
        advice="of more than {limit:,} pixels: skipped in training; make smaller, or set "
        "VITLAB_MAX_PIXELS to allow more",
        serious=True,
    ),
    "animated": Kind(
        noun="file",
        advice="of several frames or pages: skipped in training, since nothing says which is "
        "meant; save one of them as PNG",
        serious=True,
    ),
    "small": Kind(
        noun="image",
        advice="with a side under {side:g} pixels: icons or thumbnails? Enlarged, they show little",
        serious=True,
    ),
    "copies": Kind(
        noun="image",
        advice="that repeat an earlier image of their class ({exact:,} bit for bit): "
        "a copy counts twice",
    ),
    "few": Kind(
        noun="class",
        plural="classes",
        advice="with fewer than {least} training images: start from pretrained weights",
    ),
    "narrow": Kind(
        noun="image",
        advice="more than {ratio} times as long as wide: a centre crop sees a small part",
    ),
    "wrong_ending": Kind(
        noun="image",
        advice="with the ending of another format: read by their content",
    ),
    "rotated": Kind(
        noun="image",
        advice="stored on the side or mirrored, as EXIF says: turned upright when read",
    ),
    "grey": Kind(
        noun="image",
        advice="in grey: read as three equal channels unless all are; colour may betray the class",
    ),
    "cmyk": Kind(noun="image", advice="in CMYK, for print: converted, colours may shift a little"),
    "deep": Kind(noun="image", advice="with 16 bits a channel: scaled to 8"),
    "transparent": Kind(noun="image", advice="with transparency: put on white"),
    "palette": Kind(noun="image", advice="with a palette: converted to RGB"),
    "loose": Kind(noun="image", advice="in no class folder", unread=True),
    "hidden": Kind(
        noun="image",
        advice="with an ending that is not looked for; rename or convert",
        unread=True,
    ),
    "other_files": Kind(noun="file", advice="of another kind, by name and content", unread=True),
}
"""All kinds of findings, in the order of the report."""


# Problems with the classes of a folder: missing, duplicated, empty, too small.

FEW = 10
"""Training images of a class below which it is hard to learn from scratch."""
IMBALANCE = 10
"""Largest tolerated ratio between the largest class and another."""

Counts = Mapping[str, Mapping[str, int]]


def class_findings(listing: Listing, counts: Counts, different: Counts) -> Iterator[Finding]:
    """Findings from the names and sizes of the classes.

    `different` are the numbers of images where copies count as one.
    """
    training = TRAIN if TRAIN in listing.classes else WHOLE
    labels = listing.classes[training]
    if len(labels) < 2:
        yield from finding(
            "one_class" if labels else "no_classes", [Item(paths=(training or ".",))]
        )
    doubled = _differ_by_case(listing)
    yield from finding("case_classes", [Item(paths=tuple(names)) for names in doubled])
    known = {folded(label) for label in labels}
    judged = next((name for name in TEST if name in listing.classes), None)
    for split, own in listing.classes.items():
        if split not in (training, judged):
            continue  # training does not open it
        # Names that differ only by case are reported above.
        strange = [label for label in own if folded(label) not in known]
        absent = known - {folded(label) for label in own}
        missing = [label for label in labels if folded(label) in absent]
        yield from finding("untrained_classes", _folders(split, strange), split=split)
        yield from finding("unjudged_classes", _folders(training, missing), split=split)
    yield from _size_findings(counts, training)
    yield from _split_findings(different, training)


def _split_findings(different: Counts, training: str) -> Iterator[Finding]:
    """Classes with too few images for every part of the split that training makes."""
    parts = ["1 to learn from", "1 to hold out", *(["1 to test"] if training == WHOLE else [])]
    items = [
        Item(paths=(_place(training, label),), detail=f"{splits[training]} different")
        for label, splits in different.items()
        if 0 < splits.get(training, 0) < len(parts)
    ]
    yield from finding("unsplit", items, least=len(parts), parts=", ".join(parts))


def _folders(split: str, labels: list[str]) -> list[Item]:
    return [Item(paths=(_place(split, label),)) for label in labels]


def _place(split: str, label: str) -> str:
    return f"{split}/{label}" if split else label


def _differ_by_case(listing: Listing) -> list[list[str]]:
    """Class folders whose names differ only by case."""
    alike: defaultdict[str, set[str]] = defaultdict(set)
    for label in chain(*listing.classes.values()):
        alike[folded(label)].add(label)
    return [
        [
            _place(split, name)
            for split, own in listing.classes.items()
            for name in own
            if name in names
        ]
        for names in alike.values()
        if len(names) > 1
    ]


def _size_findings(counts: Counts, training: str) -> Iterator[Finding]:
    empty = [
        Item(paths=(_place(split, label),))
        for label, splits in counts.items()
        for split, count in splits.items()
        if not count
    ]
    yield from finding("empty_classes", empty)
    sizes = {label: splits[training] for label, splits in counts.items() if splits.get(training)}
    largest = max(sizes.values(), default=0)
    for name, limit in (("imbalance", largest / IMBALANCE), ("few", FEW)):
        items = [
            Item(paths=(_place(training, label),), detail=f"{count:,} of at most {largest:,}")
            for label, count in sizes.items()
            if count < limit
        ]
        yield from finding(name, items, least=FEW)
