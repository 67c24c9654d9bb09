"""`vitlab figures`: the paper's figures about a model, as pictures and numbers."""

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from vitlab.errors import Lacks
from vitlab.explain.gather import Gathered, Gatherer, batch_size_for
from vitlab.inference.classifier import Classifier
from vitlab.models.merging import unmerged
from vitlab.tasks.any_model import AnyModel, open_any
from vitlab.tasks.figures.feature_pca import spread
from vitlab.tasks.figures.figure import Figure, Seen, Watch
from vitlab.tasks.figures.images import draw_images
from vitlab.tasks.figures.style import check_matplotlib
from vitlab.tasks.figures.table import FIGURES, chosen
from vitlab.tasks.figures.write import check_folder, write_figures
from vitlab.tasks.job_machine import best_device


@dataclass(frozen=True, kw_only=True, eq=False)
class Figures:
    """The figures of a model by name, and the reasons why others are not among them."""

    model: str
    fresh: bool
    """The weights are random: nobody has trained them."""
    images: int
    """Images that were looked at; 0 where no figure needed any."""
    figures: dict[str, Figure]
    lacking: dict[str, str]
    broken: dict[str, str] = field(default_factory=dict)
    """Images that could not be read, with the reason."""
    files: tuple[Path, ...] = ()

    def __getitem__(self, name: str) -> dict[str, Any]:
        """The numbers of one figure."""
        return self.figures[name].data

    def write(self, output: str | os.PathLike[str]) -> tuple[Path, ...]:
        """Each figure as PNG and SVG with its numbers as JSON, in a folder."""
        return write_figures(self.figures, self.model, Path(output))


def figures(
    model: str | os.PathLike[str] | Classifier,
    output: str | os.PathLike[str] | None = None,
    *,
    data: str | os.PathLike[str] = "sample",
    images: int = 128,
    only: Iterable[str] | None = None,
    seed: int = 0,
    download: bool = False,
    watch: Watch | None = None,
) -> Figures:
    """The numbers of the figures and, with `output`, their files in that folder.

    `images` are drawn from `data` by `seed`. A figure of something that the model does not have is
    left out with a reason; an error where that leaves none.
    """
    names = chosen(only)
    if output is not None:
        check_matplotlib()
        check_folder(Path(output))
    opened = open_any(model)
    lacking: dict[str, str] = {}
    for name in names:
        try:
            FIGURES[name].check(unmerged(opened.classifier.model)[0])
        except Lacks as error:
            lacking[name] = str(error)
    _require_some(names, lacking)
    seen, broken = _look(opened, names, lacking, data, images, seed, download, watch)
    made: dict[str, Figure] = {}
    for name in names:
        if name not in lacking:
            try:
                made[name] = FIGURES[name].build(seen)
            except Lacks as error:
                lacking[name] = str(error)
    _require_some(names, lacking)
    found = Figures(
        model=opened.name,
        fresh=opened.fresh,
        images=seen.images,
        figures=made,
        lacking=lacking,
        broken=broken,
        files=() if output is None else write_figures(made, opened.name, Path(output), watch),
    )
    return found


def _require_some(names: list[str], lacking: dict[str, str]) -> None:
    if set(names) <= set(lacking):
        raise Lacks("; ".join(lacking[name] for name in names))


def _look(
    opened: AnyModel,
    names: list[str],
    lacking: dict[str, str],
    data: str | os.PathLike[str],
    count: int,
    seed: int,
    download: bool,
    watch: Watch | None,
) -> tuple[Seen, dict[str, str]]:
    """Run the model over the images, if any figure needs that."""
    model, gathered = unmerged(opened.classifier.model)[0], Gathered()
    needs = frozenset().union(*(FIGURES[name].needs for name in names if name not in lacking))
    if not needs:
        seen = Seen(
            model=model, name=opened.name, gathered=gathered, preprocessing=None, watch=watch
        )
        return seen, {}
    preprocessing = opened.classifier.preprocessing
    drawn = draw_images(data, count, seed=seed, download=download)
    gatherer = Gatherer(
        model=model,
        attention="attention" in needs,
        means="means" in needs,
        pooled="pooled" in needs,
        pictures=spread(drawn.total) if "pictures" in needs else frozenset(),
    )
    device, before = best_device(), next(model.parameters()).device
    batches = drawn.batches(preprocessing, batch_size=batch_size_for(model), device=device)
    try:
        model.to(device)
        with torch.inference_mode():
            for batch in batches:
                gatherer.see(batch, gathered)
                if watch is not None:
                    watch("images", len(drawn.names) + len(drawn.broken), drawn.total)
    finally:
        model.to(before)  # somebody else may use it
    seen = Seen(
        model=model,
        name=opened.name,
        gathered=gathered,
        preprocessing=preprocessing,
        names=drawn.names,
        labels=drawn.labels,
        watch=watch,
    )
    return seen, {str(path): reason for path, reason in drawn.broken.items()}
