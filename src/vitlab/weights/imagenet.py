"""The 1,000 classes of ImageNet-1k in the order of every published head: WordNet ids and names."""

from functools import cache
from importlib.resources import files

NAME = "imagenet-1k"
"""Name of this set of labels."""


@cache
def _classes() -> tuple[tuple[str, str], ...]:
    text = (files("vitlab") / "imagenet1k.txt").read_text(encoding="utf-8")
    lines = (line.split(" ", 1) for line in text.splitlines())
    return tuple((wordnet, name) for wordnet, name in lines)


def labels() -> tuple[str, ...]:
    """Name of each class: WordNet's first, extended where two classes share it."""
    return tuple(name for _, name in _classes())


def wordnet_ids() -> tuple[str, ...]:
    """WordNet id of each class, as in the names of ImageNet's folders: `n02124075`."""
    return tuple(wordnet for wordnet, _ in _classes())
