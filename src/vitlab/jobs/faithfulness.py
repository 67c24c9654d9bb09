"""`vitlab explain --faithfulness`: deletion and insertion tests of each method on some images."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitlab.classify.classifier import Classifier, load
from vitlab.classify.explainer import Explainer, Read
from vitlab.config import to_dict
from vitlab.errors import InputError, UnknownName
from vitlab.evaluation.metrics import bootstrap_interval
from vitlab.explain.faithfulness import (
    REMOVED,
    Curves,
    Perturbation,
    Removed,
    area,
    order_of,
)
from vitlab.explain.figure import save
from vitlab.explain.limits import STEPS, TESTED
from vitlab.explain.methods import every_method, images_at_once
from vitlab.explain.request import METHODS, ExplainRequest, Method, answerable
from vitlab.images.pixels import reading
from vitlab.io.text import literal
from vitlab.jobs.explain import Watch, choose, reads
from vitlab.machine.device import best_device
from vitlab.models.vit import VisionTransformer
from vitlab.objectives.objective import objective_of
from vitlab.report.plots import CLASSES, FAINT, PAGE, QUIET, new_figure, styled
from vitlab.weights.labels import Labels

if TYPE_CHECKING:
    from matplotlib.figure import Figure


RANDOM = "random"
"""The baseline of every method: patches in random order."""

Interval = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Area:
    """Mean area under the curves of all images, and its gain over random order.

    Lower is better for deletion, higher for insertion; the gain is paired by image.
    """

    mean: float
    interval: Interval | None
    """None for a single image, which has no interval."""
    gain: float
    gain_interval: Interval | None


@dataclass(frozen=True, kw_only=True)
class MethodScore:
    """One method in both tests, with the mean curves."""

    method: str
    deletion: Area
    insertion: Area
    deletion_curve: tuple[float, ...]
    insertion_curve: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Faithfulness:
    """Results of the tests."""

    model: str
    images: int
    steps: int
    removed: Removed
    seed: int
    shares: tuple[float, ...]
    """Share of the patches at each point of a curve."""
    scores: tuple[MethodScore, ...]
    """Scores by method; random order is the last."""
    broken: dict[str, str]

    def to_json(self) -> dict[str, Any]:
        """All numbers, as JSON-able values."""
        return to_dict(self)


def faithfulness(
    model: str | os.PathLike[str],
    images: Sequence[str | os.PathLike[str]],
    *,
    methods: Sequence[Method] | None = None,
    count: int = TESTED,
    steps: int = STEPS,
    removed: Removed = "mean",
    seed: int = 0,
    labels: Labels | None = None,
    download: bool = False,
    watch: Watch | None = None,
    **changes: Any,
) -> Faithfulness:
    """Remove patches of images, and restore them, in the order of each method's map.

    `methods` None: all that the model has. `seed` draws `count` images if there are more, and the
    random order.
    """
    if removed not in REMOVED:
        raise UnknownName("removed", removed, REMOVED)
    classifier = load(model, labels=labels, **changes)
    classifier.model.to(best_device())
    asked = _methods(classifier, methods)
    explainer = Explainer(classifier, ExplainRequest(method=asked[0]))
    _check(classifier, steps)
    with reading():
        chosen = choose(images, count=count, seed=seed, download=download)
        found: dict[str, list[Curves]] = {}
        broken: dict[str, str] = {}
        done = 0
        pictures = reads(explainer, chosen, broken, longest=1)
        for batch in _batches(pictures, images_at_once(classifier.model)):
            for name, curves in _test(explainer, batch, asked, steps, removed, seed + done).items():
                found.setdefault(name, []).append(curves)
            done += len(batch)
            if watch is not None:
                watch("images", done + len(broken), len(chosen.pictures))
    return Faithfulness(
        model=os.fspath(model),
        images=done,
        steps=steps,
        removed=removed,
        seed=seed,
        shares=tuple(found[RANDOM][0].shares.tolist()),
        scores=tuple(_scores(found)),
        broken=broken,
    )


def _methods(classifier: Classifier, asked: Sequence[Method] | None) -> tuple[Method, ...]:
    """The requested methods, or all that the model has; each once."""
    if asked is not None:
        if not asked:
            raise InputError(f"no method named; valid: {', '.join(METHODS)}")
        for method in asked:
            ExplainRequest(method=method).check(classifier.model)
        return tuple(dict.fromkeys(asked))
    return answerable(classifier.model)


def _check(classifier: Classifier, steps: int) -> None:
    classifier.source.require_head()
    if objective_of(classifier.source.task).has_values:
        raise InputError("faithfulness of a regression; valid: a model that predicts probabilities")
    rows, columns = cells_of(classifier)
    if not 2 <= steps <= rows * columns:
        raise InputError(f"steps {steps}; valid: 2 to {rows * columns}, the number of patches")


def cells_of(classifier: Classifier) -> tuple[int, int]:
    """Grid of patches to remove: that of the model, or squares of a similar size for a CNN."""
    size = classifier.preprocessing.size
    if isinstance(classifier.model, VisionTransformer):
        return classifier.model.config.grid_for(size)
    rows, columns = (min(side, max(8, side // 16)) for side in size)
    return rows, columns


def _batches(pictures: Iterator[Read], size: int) -> Iterator[list[Read]]:
    while batch := list(islice(pictures, size)):
        yield batch


def _test(
    explainer: Explainer,
    batch: Sequence[Read],
    methods: Sequence[Method],
    steps: int,
    removed: Removed,
    seed: int,
) -> dict[str, Curves]:
    """Curves of every method for a batch of images, and those of random order."""
    classifier, images = explainer.classifier, explainer.images(batch)
    grid = cells_of(classifier)
    target, maps = every_method(classifier.model, images, methods, grid)
    draw = torch.Generator().manual_seed(seed)
    maps[RANDOM] = torch.rand(len(batch), *grid, generator=draw)
    orders: dict[str, Tensor] = {name: order_of(found, draw) for name, found in maps.items()}
    test = Perturbation(steps=steps, removed=removed)
    return test.curves(classifier.probabilities, images, target, orders, grid)


def _scores(found: dict[str, list[Curves]]) -> Iterator[MethodScore]:
    shares = found[RANDOM][0].shares
    together = {
        name: (
            np.concatenate([one.deletion for one in curves]),
            np.concatenate([one.insertion for one in curves]),
        )
        for name, curves in found.items()
    }
    by_chance = [area(shares, curves) for curves in together[RANDOM]]
    for name, (deletion, insertion) in together.items():
        yield MethodScore(
            method=name,
            deletion=_area(area(shares, deletion), by_chance[0], sign=-1),
            insertion=_area(area(shares, insertion), by_chance[1], sign=1),
            deletion_curve=tuple(deletion.mean(axis=0).tolist()),
            insertion_curve=tuple(insertion.mean(axis=0).tolist()),
        )


def _area(areas: NDArray[np.float64], by_chance: NDArray[np.float64], *, sign: int) -> Area:
    gains = sign * (areas - by_chance)
    return Area(
        mean=float(areas.mean()),
        interval=_mean_interval(areas),
        gain=float(gains.mean()),
        gain_interval=_mean_interval(gains),
    )


def _mean_interval(values: NDArray[np.float64]) -> Interval | None:
    if len(values) < 2:
        return None
    return bootstrap_interval(lambda rows: float(values[rows].mean()), len(values))


# The curves of deletion and insertion: probability against the share of patches.

STYLES: dict[str, tuple[str, Any]] = {
    "attention": (CLASSES[0], "-"),
    "rollout": (CLASSES[2], (0, (6, 2))),
    "relevance": (CLASSES[1], "-"),
    "gradcam": (CLASSES[3], (0, (3, 1, 1, 1))),
    "input-gradient": (CLASSES[4], (0, (2, 1))),
    RANDOM: (QUIET, (0, (1, 2))),
}
"""Colour and dashes of each method."""


def write_plot(found: Faithfulness, path: Path) -> None:
    """Write the figure: PNG, SVG or PDF, by the name."""
    with styled():
        save(plot(found), path)


def plot(found: Faithfulness) -> "Figure":
    """Both tests side by side; the number is the area under the mean curve."""
    figure = new_figure(PAGE * 1.3, 4.3)
    left, right = figure.subplots(1, 2, sharey=True)
    for score in found.scores:
        _draw(left, found, score.method, score.deletion_curve, score.deletion)
        _draw(right, found, score.method, score.insertion_curve, score.insertion)
    _dress(left, "deletion: a low curve is a true map", "patches taken away, %", "upper right")
    _dress(right, "insertion: a high curve is a true map", "patches given back, %", "lower right")
    left.set_ylabel("mean probability of the predicted class")
    note = f"{Path(found.model).name}, {found.images:,} images; removed patches: {found.removed}"
    figure.suptitle(literal(note), fontsize=10, color=QUIET)
    return figure


def _draw(
    axes: Any, found: Faithfulness, method: str, curve: tuple[float, ...], area: Area
) -> None:
    colour, dashes = STYLES[method]
    axes.plot(
        [100 * share for share in found.shares],
        curve,
        color=colour,
        linestyle=dashes,
        linewidth=1.8,
        label=f"{method}  {area.mean:.3f}",
    )


def _dress(axes: Any, title: str, across: str, legend: str) -> None:
    axes.set_title(title)
    axes.set_xlabel(across)
    axes.set_xlim(0, 100)
    axes.set_ylim(bottom=0)
    axes.grid(color=FAINT, linewidth=0.8)
    axes.legend(loc=legend, title="area under the curve", frameon=True, edgecolor="none")
