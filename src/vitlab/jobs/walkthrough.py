"""`vitlab walkthrough`: one image through one head, as a page to read."""

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from vitlab.classify.classifier import Classifier
from vitlab.data.images import FileSet
from vitlab.data.pointed import open_named
from vitlab.errors import FileError
from vitlab.explain.walkthrough import Walkthrough, walk_through
from vitlab.images.preprocessing import Source
from vitlab.io.files import check_parent, replacing
from vitlab.jobs.any_model import open_any
from vitlab.report.figures.feature_pca import shown
from vitlab.report.walkthrough.page import Page, render
from vitlab.report.walkthrough.query import Followed

DEFAULT_MODEL = "cifar10"
"""The model inside the package."""
ENDINGS = (".html", ".htm")


@dataclass(frozen=True, kw_only=True, eq=False)
class Walked:
    """The numbers of a walkthrough, and the page that tells them."""

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
) -> Walked:
    """Follow the patch at row and column `token` (None: in the middle) through one head.

    `image` is a file, an array, a picture, or one of a dataset by name, such as `sample/test/17`.
    """
    path = None if output is None else Path(output)
    if path is not None:
        check_page(path)
    opened = open_any(model)
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
    page = render(Page(followed=followed, model=opened.name, image=title, fresh=opened.fresh))
    if path is not None:
        with replacing(path) as file:
            file.write(page.encode(errors="replace"))
    return Walked(walk=walk, model=opened.name, fresh=opened.fresh, page=page, output=path)


def check_page(path: Path) -> None:
    """Refuse a place that no page can be written to, before anything is computed."""
    if path.suffix.lower() not in ENDINGS:
        raise FileError(f"{path}: the page is HTML; valid: a name that ends in .html")
    check_parent(path)


def _opened(image: Source) -> tuple[Source, str]:
    """What is read, and what to call it: an image of a dataset has a name of its own."""
    if not isinstance(image, str | os.PathLike):
        return image, "an image"
    name = os.fspath(image)
    named = None if os.path.exists(name) else open_named(name)
    if named is None:
        return image, os.path.basename(name)
    if isinstance(named, FileSet):
        return named.paths[0], name
    pixels = named.images[0].permute(1, 2, 0).squeeze(-1).contiguous().numpy()
    return Image.fromarray(pixels), name
