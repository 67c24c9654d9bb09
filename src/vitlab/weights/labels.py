"""Class names: a named set (ImageNet-1k), a file, or a sequence."""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from vitlab.config import parse_json
from vitlab.errors import WeightsError, suggest
from vitlab.wordnet import imagenet_labels as imagenet_labels
from vitlab.wordnet import names_of
from vitlab.wordnet import wordnet_ids as wordnet_ids

Labels = str | os.PathLike[str] | Iterable[str]
LIMIT = 16 << 20
"""Maximum bytes of a file of labels."""
IMAGENET = "imagenet-1k"
"""Name of the 1,000 classes of ImageNet-1k, in the order of every published head."""


def known_labels(dataset: str | None, classes: int) -> tuple[str, ...] | None:
    """Names of a dataset's classes, if the dataset is known and has this many."""
    if dataset == IMAGENET and classes == len(imagenet_labels()):
        return imagenet_labels()
    return None


def read_labels(given: Labels, classes: int) -> tuple[str, ...]:
    """Names of a model's classes, in order, as many as the model has."""
    if given == IMAGENET:
        labels, where = imagenet_labels(), IMAGENET
    elif isinstance(given, str | os.PathLike):
        labels, where = labels_in(Path(given)), os.fspath(given)
    else:
        labels, where = tuple(map(str, given)), "labels"
    if len(labels) != classes:
        raise WeightsError(
            f"{where}: {len(labels)} labels for a model of {classes} classes; "
            f"valid: {classes}, one a line or as a JSON list"
        )
    return labels


def matching(stored: Sequence[str], wanted: Iterable[str]) -> tuple[int | None, ...]:
    """Index of each wanted class among the stored ones; None if it is new.

    Names are compared without case, spaces, hyphens and underscores; ImageNet's classes are also
    known by their WordNet ids, and `tench (n01440764)` by both its parts. A name shared by two
    stored classes matches neither.
    """
    numbers: dict[str, int | None] = {}
    ids = wordnet_ids() if tuple(stored) == imagenet_labels() else ("",) * len(stored)
    for number, (name, wordnet) in enumerate(zip(stored, ids, strict=True)):
        for known in {_plain(each) for each in (*names_of(name), wordnet) if each}:
            numbers[known] = None if known in numbers else number
    return tuple(_first(numbers, name) for name in wanted)


def _first(numbers: Mapping[str, int | None], name: str) -> int | None:
    """Number of the first of a class's names that is known."""
    known = (_plain(each) for each in names_of(name))
    return next((numbers[each] for each in known if each in numbers), None)


def _plain(name: str) -> str:
    return " ".join(re.split(r"[\s_-]+", name.casefold())).strip()


def labels_in(path: Path) -> tuple[str, ...]:
    """Labels of a file: one label a line, or JSON: a list, or an object of numbers to labels."""
    if not path.is_file():
        hint = suggest(path.name, [IMAGENET])
        raise WeightsError(f"{path}: no such file of labels, and no known set; {hint}")
    if path.stat().st_size > LIMIT:
        raise WeightsError(f"{path}: {path.stat().st_size} bytes; valid for labels: up to {LIMIT}")
    try:
        text = path.read_text(encoding="utf-8-sig")
        labels = _from_json(text) if path.suffix == ".json" else _from_lines(text)
    except (ValueError, KeyError, TypeError) as error:
        raise WeightsError(
            f"{path}: not a file of labels ({' '.join(str(error).split())}); valid: one a line, "
            f"or a JSON list"
        ) from error
    if not all(labels):
        raise WeightsError(f"{path}: label {labels.index('') + 1} is empty")
    return labels


def _from_lines(text: str) -> tuple[str, ...]:
    return tuple(line.strip() for line in text.rstrip().splitlines())


def _from_json(text: str) -> tuple[str, ...]:
    content = parse_json(text)
    if isinstance(content, dict):
        content = [content[str(number)] for number in range(len(content))]
    if not isinstance(content, list) or not all(isinstance(label, str) for label in content):
        raise TypeError("neither a list of texts nor an object of numbers to texts")
    return tuple(label.strip() for label in content)
