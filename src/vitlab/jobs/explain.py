"""`vitlab explain`: maps of the evidence for predictions, as numbers and as a figure."""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vitlab.classify.classifier import load
from vitlab.classify.explainer import Explainer, Read, Target
from vitlab.data.images import ArraySet, ImageSet
from vitlab.data.listing import list_images, open_named
from vitlab.errors import InputError
from vitlab.explain.explanation import Explanation
from vitlab.explain.figure import check_name, draw, save
from vitlab.explain.limits import LONGEST, MOST, SHOWN
from vitlab.explain.request import ExplainRequest
from vitlab.images.pixels import ImageSource, reading
from vitlab.machine.device import best_device
from vitlab.weights.labels import Labels

Watch = Callable[[str, int, int], None]
"""Progress callback: name of the stage, number done, and total."""

# The images to explain: files, folders, patterns, datasets, and images of a dataset.


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """A sample of the named images."""

    pictures: Sequence[tuple[str, ImageSource]]
    total: int
    """Number of images that were named."""


def choose(
    specs: Sequence[str | os.PathLike[str]], *, count: int, seed: int, download: bool = False
) -> Chosen:
    """The images, or `count` of them drawn at random, in their order."""
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
    """The images one after the other; unreadable ones go to `broken` with the reason.

    Raises InputError if none can be read.
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
    """Name of each image, its set, and its number in the set."""
    alone = open_named(spec)
    if alone is not None:
        return [(spec, alone, 0)]
    return [
        (name, part.images, number)
        for part in list_images([spec], download=download)
        for number, name in enumerate(part.names)
    ]


def _source(images: ImageSet, number: int) -> ImageSource:
    if isinstance(images, ArraySet):
        return images.images[number].permute(1, 2, 0).contiguous().numpy()
    return images.source(number)


@dataclass(frozen=True, kw_only=True, eq=False)
class Explained:
    """Explanations of the images."""

    explanations: Sequence[Explanation]
    broken: dict[str, str]
    """Images that could not be read, with the reason."""
    total: int
    """Number of images that were named, of which a sample may have been drawn."""
    output: Path | None

    def to_json(self) -> dict[str, Any]:
        """All numbers, as JSON-able values."""
        return {
            "output": None if self.output is None else str(self.output),
            "images": [one.to_json() for one in self.explanations],
            "named": self.total,
            "broken": self.broken,
        }


def explain(
    model: str | os.PathLike[str],
    images: Sequence[str | os.PathLike[str]],
    *,
    ask: ExplainRequest,
    target: Target | None = None,
    output: Path | None = None,
    count: int = SHOWN,
    seed: int = 0,
    labels: Labels | None = None,
    download: bool = False,
    watch: Watch | None = None,
    **changes: Any,
) -> Explained:
    """Explain images, at most `count` of them; with `output`, draw the maps."""
    if output is not None:
        check_name(output)
        if count > MOST:
            raise InputError(f"a figure of {count} images; valid: up to {MOST}")
    classifier = load(model, labels=labels, **changes)
    classifier.model.to(best_device())
    explainer = Explainer(classifier, ask, target)
    with reading():
        chosen = choose(images, count=count, seed=seed, download=download)
        if output is not None and ask.each == "head" and len(chosen.pictures) > 1:
            raise InputError(
                f"a figure of every head of {len(chosen.pictures)} images; valid: one image"
            )
        found: list[Explanation] = []
        broken: dict[str, str] = {}
        kept = 1 if output is None else LONGEST
        for explanation in explainer.stream(reads(explainer, chosen, broken, longest=kept)):
            found.append(explanation)
            if watch is not None:
                watch("images", len(found) + len(broken), len(chosen.pictures))
    if output is not None:
        save(draw(found), output)
    return Explained(explanations=found, broken=broken, total=chosen.total, output=output)
