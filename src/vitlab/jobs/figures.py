"""`vitlab figures`: the paper's figures about a model, as images and numbers."""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from vitlab.classify.classifier import Classifier
from vitlab.data.datasets import open_data
from vitlab.data.images import ArraySet, one_of
from vitlab.data.listing import Listed, list_images
from vitlab.data.loader import batches_for_evaluation
from vitlab.data.order import generator
from vitlab.errors import DataError, InputError, Unsupported
from vitlab.explain.statistics import Gathered, Gatherer, batch_size_for
from vitlab.images.preprocessing import MODES, Preprocessing
from vitlab.jobs.any_model import AnyModel, open_any, stated
from vitlab.machine.device import best_device
from vitlab.models.merging import unmerged
from vitlab.registry import DATASETS
from vitlab.report.figures.features import spread
from vitlab.report.figures.figure import Figure, Seen, Watch
from vitlab.report.figures.table import FIGURES, check_folder, chosen, write_figures
from vitlab.report.plots import check_matplotlib
from vitlab.weights.preparation import Stated

# Images for the statistics of a model: a sample of a dataset, drawn by a seed.


@dataclass(kw_only=True)
class Drawn:
    """Images to read; `names`, `labels` and `broken` are filled while they are read."""

    parts: Sequence[Listed]
    names: list[str] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    broken: dict[Path, str] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """Number of images, including unreadable ones."""
        return sum(map(len, self.parts))

    def batches(
        self, preprocessing: Preprocessing, *, batch_size: int, device: torch.device
    ) -> Iterator[Float[Tensor, "B C H W"]]:
        """Preprocessed batches; names and labels are collected on the way."""
        for part in self.parts:
            _check_channels(part, preprocessing.channels)
            for images, _, index in batches_for_evaluation(
                part.images,
                batch_size=batch_size,
                preprocessing=preprocessing,
                device=device,
                broken=self.broken,
            ):
                self.names += [part.names[number] for number in index.tolist()]
                self.labels += [part.labels[number] for number in index.tolist()]
                yield images
        if not self.names:
            raise DataError(f"none of {self.total} images can be read; {one_of(self.broken)}")


def draw_images(
    data: str | os.PathLike[str], count: int, *, seed: int, download: bool = False
) -> Drawn:
    """`count` images, or all if there are fewer; of a dataset by name, test images."""
    if count < 1:
        raise InputError(f"images {count}; valid: at least 1")
    parts = list_images([data], split=_split(data, download), download=download)
    total = sum(map(len, parts))
    numbers = torch.randperm(total, generator=generator(seed, "figures"))[:count].sort().values
    drawn, start = [], 0
    for part in parts:
        inside = numbers[(numbers >= start) & (numbers < start + len(part))] - start
        start += len(part)
        drawn.append(
            Listed(
                images=part.images.subset(inside),
                names=[part.names[number] for number in inside.tolist()],
                labels=[part.labels[number] for number in inside.tolist()],
            )
        )
    return Drawn(parts=drawn)


def _split(data: str | os.PathLike[str], download: bool) -> str | None:
    """Split to read: the test images of a named dataset, if it has any; None for files."""
    if os.fspath(data) not in DATASETS:
        return None
    return "all" if open_data(data, download=download).open_test is None else "test"


def _check_channels(part: Listed, channels: int) -> None:
    if not isinstance(part.images, ArraySet) or channels in MODES:
        return
    found = part.images.images.shape[1]
    if found != channels:
        raise DataError(
            f"images of {found} channels for a model of {channels}; valid: other data (--data), or "
            f"figures that need no images (--only filters,positions)"
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Figures:
    """Figures of a model by name, and the reasons for missing ones."""

    model: str
    fresh: bool
    """True if the weights are random, not trained."""
    images: int
    """Number of images that were used; 0 if no figure needed any."""
    figures: dict[str, Figure]
    lacking: dict[str, str]
    broken: dict[str, str] = field(default_factory=dict)
    """Images that could not be read, with the reason."""
    files: tuple[Path, ...] = ()

    def __getitem__(self, name: str) -> dict[str, Any]:
        """Numbers of one figure."""
        return self.figures[name].data

    def write(self, output: str | os.PathLike[str]) -> tuple[Path, ...]:
        """Write each figure as PNG and SVG with its numbers as JSON to a folder."""
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
    preprocessing: Stated | None = None,
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
    opened = open_any(model, **stated(preprocessing))
    lacking: dict[str, str] = {}
    for name in names:
        try:
            FIGURES[name].check(unmerged(opened.classifier.model)[0])
        except Unsupported as error:
            lacking[name] = str(error)
    _require_some(names, lacking)
    seen, broken = _run_model(opened, names, lacking, data, images, seed, download, watch)
    made: dict[str, Figure] = {}
    for name in names:
        if name not in lacking:
            try:
                made[name] = FIGURES[name].build(seen)
            except Unsupported as error:
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
        raise Unsupported("; ".join(lacking[name] for name in names))


def _run_model(
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
        model.to(before)  # the caller may go on using it
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
