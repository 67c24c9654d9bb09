"""`vitlab walkthrough`: one image from pixels to probabilities, as an HTML page."""

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from vitlab.classify.classifier import Classifier
from vitlab.data.images import FileSet, IndexedSet
from vitlab.data.listing import open_named
from vitlab.errors import FileError
from vitlab.explain.walkthrough import Walkthrough, walk_through
from vitlab.images.open import open_image, opened
from vitlab.images.preprocessing import Source
from vitlab.io.files import check_parent, replacing
from vitlab.jobs.any_model import open_any, stated
from vitlab.objectives.objective import objective_of
from vitlab.report.figures.features import shown
from vitlab.report.language import check_language, speaking
from vitlab.report.walkthrough.after import Answer
from vitlab.report.walkthrough.heads import Followed
from vitlab.report.walkthrough.page import Page, render
from vitlab.weights.preparation import Stated

DEFAULT_MODEL = "vit_plain.cifar10"
"""The model inside the package that has the paper's steps and no others."""
ENDINGS = (".html", ".htm")


@dataclass(frozen=True, kw_only=True, eq=False)
class Walked:
    """The numbers of a walkthrough, and its page."""

    walk: Walkthrough
    model: str
    fresh: bool
    page: str
    output: Path | None = None


def walkthrough(
    image: Source,
    output: str | os.PathLike[str] | None = None,
    *,
    model: str | os.PathLike[str] | Classifier = DEFAULT_MODEL,
    layer: int = 0,
    head: int = 0,
    token: tuple[int, int] | None = None,
    preprocessing: Stated | None = None,
    language: str = "en",
) -> Walked:
    """Follow an image through a model, and the patch at row and column `token` through one head.

    `image` is a file, an array, a PIL image, or one of a dataset by name, such as `sample/test/17`.
    Without `token` it is the central patch. `language` of the page: en or zh.
    """
    check_language(language)
    path = None if output is None else Path(output)
    if path is not None:
        check_page(path)
    opened = open_any(model, **stated(preprocessing))
    preprocessing = opened.classifier.preprocessing
    found, title = _opened(image)
    prepared = torch.from_numpy(preprocessing.apply(found))
    network = opened.classifier.model
    walk = walk_through(network, prepared, layer=layer, head=head, token=token)
    followed = Followed(
        walk=walk,
        config=network.config,
        pixels=np.ascontiguousarray(shown(prepared, preprocessing)),
    )
    content = Page(
        followed=followed,
        answer=_answer(opened.classifier, walk),
        model=opened.name,
        image=title,
        fresh=opened.fresh,
    )
    with speaking(language):
        page = render(content)
    if path is not None:
        with replacing(path) as file:
            file.write(page.encode(errors="replace"))
    return Walked(walk=walk, model=opened.name, fresh=opened.fresh, page=page, output=path)


def _answer(classifier: Classifier, walk: Walkthrough) -> Answer | None:
    """Labels and probabilities, or values; None for a model without a head."""
    readout = walk.readout
    if readout.logits is None or readout.by_layer is None:
        return None
    objective = objective_of(classifier.source.task)
    given = classifier.labels or map(str, range(len(readout.logits)))
    return Answer(
        labels=tuple(given),
        activation=objective.activation or ("none" if objective.has_values else "softmax"),
        values=classifier.activate(readout.logits),
        by_layer=classifier.activate(readout.by_layer),
    )


def check_page(path: Path) -> None:
    """Raise if the page cannot be written there, before anything is computed."""
    if path.suffix.lower() not in ENDINGS:
        raise FileError(f"{path}: the page is HTML; valid: a name that ends in .html")
    check_parent(path)


def _opened(image: Source) -> tuple[Source, str]:
    """The image to read and its title; an image of a dataset has its name as title."""
    if not isinstance(image, str | os.PathLike):
        return image, "an image"
    name = os.fspath(image)
    named = None if os.path.exists(name) else open_named(name)
    if named is None:
        return image, os.path.basename(name)
    if isinstance(named, FileSet):
        return named.paths[0], name
    if isinstance(named, IndexedSet):
        return open_image(opened(named.source(0))), name
    pixels = named.images[0].permute(1, 2, 0).squeeze(-1).contiguous().numpy()
    return Image.fromarray(pixels), name
