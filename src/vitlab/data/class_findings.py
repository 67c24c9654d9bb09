"""What is wrong with the classes of a folder: missing, doubled, empty, too small."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import chain

from vitlab.data.findings import Finding, Item, finding
from vitlab.data.folder import TEST, TRAIN, folded
from vitlab.data.listing import WHOLE, Listing

FEW = 10
"""Training images of a class below which it is hard to learn from scratch."""
IMBALANCE = 10
"""How many times as large the largest class may be as another."""

Counts = Mapping[str, Mapping[str, int]]


def class_findings(listing: Listing, counts: Counts, different: Counts) -> Iterator[Finding]:
    """Everything that the names and sizes of the classes tell.

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
        # Those that only case keeps apart have been named above.
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
    """Folders of classes that people would take for the same."""
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
