"""The classes of ImageNet-1k: their names, and the WordNet ids that its folders are called by."""

import re
from functools import cache
from importlib.resources import files

SHOWN = re.compile(r"(.+) \((n\d{8})\)")
"""A class with its name and its id: `tench (n01440764)`."""


@cache
def _classes() -> dict[str, str]:
    """Name of each class by its id, in the order of every published head."""
    text = (files("vitlab") / "imagenet1k.txt").read_text(encoding="utf-8")
    return dict(line.split(" ", 1) for line in text.splitlines())


def imagenet_labels() -> tuple[str, ...]:
    """Name of each class of ImageNet-1k: WordNet's first, extended where two classes share it."""
    return tuple(_classes().values())


def wordnet_ids() -> tuple[str, ...]:
    """WordNet id of each class, as in the names of ImageNet's folders: `n02124075`."""
    return tuple(_classes())


def shown_class(folder: str) -> str:
    """Class of a folder: `tench (n01440764)` for an id of ImageNet-1k, else the folder's name."""
    name = _classes().get(folder)
    return folder if name is None else f"{name} ({folder})"


def wordnet_id(label: str) -> str | None:
    """Id in `tench (n01440764)` or `n01440764`; None for other labels."""
    found = SHOWN.fullmatch(label)
    if found is not None:
        return found[2]
    return label if label in _classes() else None


def names_of(label: str) -> tuple[str, ...]:
    """All names of a class: of `tench (n01440764)` also the id and the word."""
    found = SHOWN.fullmatch(label)
    return (label,) if found is None else (label, found[2], found[1])
