"""Which pictures are explained: files, folders, patterns, datasets, and images of a dataset."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from vitlab.data.images import ArraySet, ImageSet
from vitlab.data.pointed import list_images, open_named
from vitlab.errors import InputError
from vitlab.inference.explainer import Explainer, Read
from vitlab.preprocessing import Source


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """Some pictures of those that were named."""

    pictures: Sequence[tuple[str, Source]]
    total: int
    """How many there are."""


def choose(
    specs: Sequence[str | os.PathLike[str]], *, count: int, seed: int, download: bool = False
) -> Chosen:
    """The pictures, or `count` of them drawn by chance, in their order."""
    if count < 1:
        raise InputError(f"images {count}; valid: at least 1")
    if seed < 0:
        raise InputError(f"seed {seed}; valid: 0 or more")
    if not specs:
        raise InputError("no images named; valid: image files, folders, patterns, a dataset")
    places = [place for spec in specs for place in _places(os.fspath(spec), download)]
    kept = list(range(len(places)))
    if len(places) > count:
        drawn = np.random.default_rng(seed).choice(len(places), size=count, replace=False)
        kept = sorted(drawn.tolist())
    pictures = [
        (name, _source(images, number)) for name, images, number in (places[i] for i in kept)
    ]
    return Chosen(pictures=pictures, total=len(places))


def reads(
    explainer: Explainer, chosen: Chosen, broken: dict[str, str], *, longest: int
) -> Iterator[Read]:
    """One picture after the other; what cannot be read goes to `broken` with the reason.

    An InputError where none can be.
    """
    readable = False
    for name, source in chosen.pictures:
        try:
            picture = explainer.read(source, name, longest=longest)
        except InputError as error:
            broken[name] = str(error).removeprefix(f"{name}: ")
            continue
        readable = True
        yield picture
    if not readable:
        name, reason = next(iter(broken.items()))
        raise InputError(f"{name}: {reason}")


def _places(spec: str, download: bool) -> list[tuple[str, ImageSet, int]]:
    """The name of each picture, the set that it is in, and its number there."""
    alone = open_named(spec)
    if alone is not None:
        return [(spec, alone, 0)]
    return [
        (name, part.images, number)
        for part in list_images([spec], download=download)
        for number, name in enumerate(part.names)
    ]


def _source(images: ImageSet, number: int) -> Source:
    if isinstance(images, ArraySet):
        return images.images[number].permute(1, 2, 0).contiguous().numpy()
    return images.paths[number]
