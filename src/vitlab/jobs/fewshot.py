"""`vitlab fewshot`: accuracy of a frozen model's features with a few images per class."""

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from vitlab.data.datasets import DataSource, absent_classes, check_split, open_data
from vitlab.data.images import ImageSet, count_images, one_of
from vitlab.data.order import generator
from vitlab.data.split import survey_files
from vitlab.errors import DataError, FileError, InputError
from vitlab.evaluation.fewshot import METHODS, Answer, Labelled, Score, check_request, draw_shots
from vitlab.io.files import check_parent, replacing
from vitlab.io.text import literal
from vitlab.jobs.features import Embedder, Watch, open_embedder
from vitlab.models.config import Size
from vitlab.report.plots import (
    CLASSES,
    COLUMN,
    FAINT,
    MARKERS,
    check_matplotlib,
    new_figure,
    rendered,
    styled,
)
from vitlab.weights.preparation import Stated

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class FewShot:
    """Accuracy on all test images by method and number of shots, over random draws."""

    model: str
    data: str
    classes: int
    test_images: int
    draws: int
    seed: int
    kind: str
    layer: int | None
    scores: tuple[Score, ...]
    broken: dict[str, str]
    """Images that could not be read, with the reason; others replaced them."""

    def to_dict(self) -> dict[str, Any]:
        """All numbers, as JSON-able values."""
        facts = ("model", "data", "classes", "test_images", "draws", "seed", "kind", "layer")
        return {name: getattr(self, name) for name in facts} | {
            "scores": [
                {
                    "method": score.method,
                    "shots": score.shots,
                    "mean": score.mean,
                    "interval": None if score.interval is None else list(score.interval),
                    "accuracies": list(score.accuracies),
                    "settings": list(score.settings),
                }
                for score in self.scores
            ],
            "broken": self.broken,
        }


def fewshot(
    model: str | os.PathLike[str],
    data: str | os.PathLike[str],
    *,
    shots: Sequence[int] = (1, 5, 10),
    draws: int = 5,
    seed: int = 0,
    methods: Sequence[str] | None = None,
    kind: str = "pooled",
    layer: int | None = None,
    image_size: Size | None = None,
    batch_size: int = 64,
    workers: int = 0,
    download: bool = False,
    preprocessing: Stated | None = None,
    watch: Watch | None = None,
) -> FewShot:
    """Draw `shots` images of each class from `train`, fit each method, evaluate on all of `test`.

    The images of fewer shots are among those of more. Each image goes through the model once.
    Without `methods`, all of them.
    """
    methods = list(METHODS) if methods is None else methods
    check_request(shots, draws, methods)
    if kind == "patches":
        raise InputError("patches are a grid, not one vector an image; valid: pooled, cls")
    embedder = open_embedder(
        model,
        kind=kind,
        layer=layer,
        image_size=image_size,
        batch_size=batch_size,
        workers=workers,
        preprocessing=preprocessing,
    )
    channels = embedder.classifier.preprocessing.channels
    progress = None if watch is None else partial(watch, "files examined")
    survey = partial(survey_files, watch=progress)
    source = open_data(data, download=download, channels=channels, survey=survey)
    images = source.open_train()
    if source.task != "single-label":
        raise DataError(f"{source.name} is {source.task} data; valid: one class for each image")
    if source.open_test is None:
        raise DataError(f"{source.name} has no test split; valid: data with train and test images")
    if source.divided:
        check_split(source, {"to learn from": images, "to test": source.open_test()})
    train = _Cache(embedder=embedder, images=images, watch=watch, what="train images")
    drawn = _draw(train, source, max(shots), draws, seed)
    test = _Cache(embedder=embedder, images=source.open_test(), watch=watch, what="test images")
    tested = test.all()
    counts = count_images(tested.labels, source.labels)
    for sentence in absent_classes(source, {"test": counts}):
        log.warning(sentence)
    scores = _evaluate(train, drawn, tested, sorted(shots), methods, len(source.labels), watch)
    return FewShot(
        model=os.fspath(model),
        data=source.name,
        classes=len(source.labels),
        test_images=len(tested.labels),
        draws=draws,
        seed=seed,
        kind=kind,
        layer=embedder.readout.layer,
        scores=scores,
        broken={str(path): reason for path, reason in (train.broken | test.broken).items()},
    )


@dataclass(kw_only=True)
class _Cache:
    """Features of a set's images, computed on first use and kept."""

    embedder: Embedder
    images: ImageSet
    watch: Watch | None
    what: str
    broken: dict[Path, str] = field(default_factory=dict)
    _known: dict[int, Float[Tensor, " D"]] = field(default_factory=dict)
    _tried: set[int] = field(default_factory=set)

    @property
    def unreadable(self) -> set[int]:
        """Numbers of the unreadable images."""
        return self._tried - set(self._known)

    def compute(self, numbers: set[int]) -> bool:
        """Compute missing features of these images; true if any image cannot be read."""
        missing = sorted(numbers - self._tried)
        known = len(self._known)
        if missing:
            part = self.images.subset(torch.tensor(missing))
            for features, index in self.embedder.stream(part, self.broken):
                for row, place in zip(features, index.tolist(), strict=True):
                    self._known[missing[place]] = row
                if self.watch is not None:
                    self.watch(self.what, len(self._known) - known, len(missing))
        self._tried |= numbers
        return not self.unreadable.isdisjoint(numbers)

    def of(self, numbers: Sequence[int]) -> Labelled:
        """Features and labels of images that were computed."""
        features = torch.stack([self._known[number] for number in numbers])
        return Labelled(features=features, labels=self.images.labels[list(numbers)])

    def all(self) -> Labelled:
        """Features and labels of every image that can be read."""
        self.compute(set(range(len(self.images))))
        if not self._known:
            raise DataError(
                f"none of {len(self.images)} {self.what} can be read; {one_of(self.broken)}"
            )
        return self.of(sorted(self._known))


def _draw(
    train: _Cache, source: DataSource, shots: int, draws: int, seed: int
) -> list[list[list[int]]]:
    """For each draw, the images of each class; unreadable ones are replaced by the next."""
    while True:
        try:
            drawn = [
                draw_shots(
                    train.images.labels,
                    source.labels,
                    shots,
                    generator=generator(seed, "fewshot", draw),
                    without=train.unreadable,
                ).tolist()
                for draw in range(draws)
            ]
        except DataError as error:
            if not train.broken:
                raise
            unread = f"{len(train.broken)} cannot be read, {one_of(train.broken)}"
            raise DataError(f"{error} ({unread})") from error
        if not train.compute({image for draw in drawn for row in draw for image in row}):
            return drawn


def _evaluate(
    train: _Cache,
    drawn: list[list[list[int]]],
    test: Labelled,
    shots: Sequence[int],
    methods: Sequence[str],
    classes: int,
    watch: Watch | None,
) -> tuple[Score, ...]:
    answers: dict[tuple[str, int], list[Answer]] = {(m, s): [] for m in methods for s in shots}
    jobs = [(draw, key) for draw in drawn for key in answers]
    for done, (draw, (method, count)) in enumerate(jobs, 1):
        chosen = train.of([image for row in draw for image in row[:count]])
        answers[method, count].append(METHODS[method](chosen, classes, test))
        if watch is not None:
            watch("fits", done, len(jobs))
    return tuple(
        Score(
            method=method,
            shots=count,
            accuracies=tuple(answer.accuracy for answer in found),
            settings=tuple(answer.setting for answer in found),
        )
        for (method, count), found in answers.items()
    )


# Accuracy against the number of shots, with the interval over draws.

NAMES = {
    "least-squares": "least squares",
    "knn": "nearest neighbours",
    "logistic": "logistic regression",
}
STYLES = dict(zip(NAMES, zip(CLASSES, MARKERS, strict=False), strict=False))
"""Colour and mark of each method."""


def check_plot(path: Path) -> None:
    """Raise if the plot cannot be drawn or written, before anything is computed."""
    if path.suffix.lower() != ".png":
        raise FileError(f"{path}: the plot is a PNG; valid: a name that ends in .png")
    check_parent(path)
    check_matplotlib("--plot")


def write_plot(found: FewShot, path: Path) -> None:
    """Write the plot as a PNG."""
    with styled():
        figure = new_figure(COLUMN * 1.4, 4.0)
        _draw_curves(figure.add_subplot(), found)
        content = rendered(figure, "png")
    with replacing(path) as file:
        file.write(content)


def _draw_curves(axes: Any, found: FewShot) -> None:
    shots = sorted({score.shots for score in found.scores})
    methods = list(dict.fromkeys(score.method for score in found.scores))
    for number, method in enumerate(methods):
        _draw_curve(axes, found, method, shots, offset=0.06 * (number - (len(methods) - 1) / 2))
    _dress(axes, found, shots)


def _draw_curve(axes: Any, found: FewShot, method: str, shots: list[int], offset: float) -> None:
    """One method; marks stand beside one another, so that no interval hides another."""
    scores = [score for score in found.scores if score.method == method]
    places = [shots.index(score.shots) + offset for score in scores]
    means = [100 * score.mean for score in scores]
    bounds = [score.interval or (score.mean, score.mean) for score in scores]
    below = [mean - 100 * low for mean, (low, _) in zip(means, bounds, strict=True)]
    above = [100 * high - mean for mean, (_, high) in zip(means, bounds, strict=True)]
    colour, mark = STYLES[method]
    axes.errorbar(
        places,
        means,
        yerr=[below, above],
        label=NAMES[method],
        color=colour,
        marker=mark,
        markersize=5,
        linewidth=1.5,
        elinewidth=1.2,
        capsize=3,
    )


def _dress(axes: Any, found: FewShot, shots: list[int]) -> None:
    axes.set_xticks(range(len(shots)), [str(count) for count in shots])
    axes.set_xlim(-0.4, len(shots) - 0.6)
    axes.set_xlabel("labelled images of each class")
    axes.set_ylabel("test accuracy, %")
    title = f"{Path(found.model).stem} on {found.data}, frozen features"
    axes.set_title(literal(title))
    axes.grid(axis="y", color=FAINT, linewidth=0.8)
    note = f"{found.test_images:,} test images; mean of {found.draws} draws"
    note += ", bars: 95 % interval" if found.draws > 1 else ""
    axes.legend(loc="lower right", title=note, title_fontsize=8)
