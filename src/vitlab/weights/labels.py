"""Class names: a named set, a file, or a sequence."""

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from vitlab.config import parse_json
from vitlab.errors import WeightsError, suggest
from vitlab.weights import imagenet

Labels = str | os.PathLike[str] | Iterable[str]
LIMIT = 16 << 20
"""Maximum bytes of a file of labels."""


def known_labels(dataset: str | None, classes: int) -> tuple[str, ...] | None:
    """Names of a dataset's classes, if the dataset is known and has this many."""
    if dataset == imagenet.NAME and classes == len(imagenet.labels()):
        return imagenet.labels()
    return None


def read_labels(given: Labels, classes: int) -> tuple[str, ...]:
    """Names of a model's classes, in order, as many as the model has."""
    if given == imagenet.NAME:
        labels, where = imagenet.labels(), imagenet.NAME
    elif isinstance(given, str | os.PathLike):
        labels, where = _from_file(Path(given)), os.fspath(given)
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
    known by their WordNet ids. A name shared by two stored classes matches neither.
    """
    numbers: dict[str, int | None] = {}
    sets = [stored, imagenet.wordnet_ids()] if tuple(stored) == imagenet.labels() else [stored]
    for names in sets:
        for number, name in enumerate(map(_plain, names)):
            numbers[name] = None if name in numbers else number
    return tuple(numbers.get(_plain(name)) for name in wanted)


def _plain(name: str) -> str:
    return " ".join(re.split(r"[\s_-]+", name.casefold())).strip()


def _from_file(path: Path) -> tuple[str, ...]:
    """One label a line, or JSON: a list, or an object of numbers to labels."""
    if not path.is_file():
        hint = suggest(path.name, [imagenet.NAME])
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
