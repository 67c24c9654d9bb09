"""`tsne`: images in the plane, similar ones close together (van der Maaten and Hinton, 2008)."""

from collections import Counter
from functools import partial
from typing import Any

import numpy as np
import torch

from vitlab.explain.embedding import tsne
from vitlab.io.text import literal
from vitlab.report.figures.figure import Figure, Seen, array, counted, plain
from vitlab.report.plots import CLASSES, FAINT, MARKERS, new_figure
from vitlab.weights import imagenet

PERPLEXITY = 30.0
SIDE = 4.6
"""Width of the points' area in inches."""
NAMED = 20
"""Number of classes with their own colour and mark; images of rarer ones are small and pale."""


def build(seen: Seen) -> Figure:
    pooled = torch.cat(seen.gathered.pooled)
    watch = None if seen.watch is None else partial(seen.watch, "t-SNE")
    perplexity = min(PERPLEXITY, max((len(pooled) - 1) / 3, 1.0))
    points = tsne(pooled, perplexity=perplexity, watch=watch)
    known = any(seen.labels)
    words = dict(zip(imagenet.wordnet_ids(), imagenet.labels(), strict=True))
    return Figure(
        caption=(
            f"t-SNE (exact, perplexity {perplexity:g}) of the pooled features of "
            f"{counted(seen.images, 'image')} in {seen.name}"
            + (", coloured by class." if known else "; their classes are not known.")
        ),
        data={
            "perplexity": perplexity,
            "images": list(seen.names),
            "labels": [words.get(label, label) for label in seen.labels],
            "points": plain(points),
        },
    )


def draw(figure: Figure) -> Any:
    data = figure.data
    points, labels = array(data["points"]), data["labels"]
    common = Counter(label for label in labels if label).most_common(NAMED)
    names = sorted(name for name, _ in common)
    across, down = np.ptp(points, axis=0) + 1e-12
    height = SIDE * min(max(down / across, 0.6), 1.2)
    drawn = new_figure(SIDE + (1.5 if names else 0.1), height + 0.3)
    axes = drawn.add_subplot()
    others = [number for number, label in enumerate(labels) if label not in names]
    if others:
        name = f"{len(set(labels) - set(names)):,} other classes" if names else None
        axes.scatter(*points[others].T, s=14, color=FAINT, linewidths=0, label=name)
        if not names:
            axes.collections[0].set_color(CLASSES[0])
    for number, name in enumerate(names):
        chosen = [place for place, label in enumerate(labels) if label == name]
        axes.scatter(
            *points[chosen].T,
            s=52 if MARKERS[number % len(MARKERS)] == "*" else 26,
            color=CLASSES[number % len(CLASSES)],
            marker=MARKERS[number % len(MARKERS)],
            linewidths=0.4,
            edgecolors="white",
            label=literal(name if len(name) < 24 else f"{name[:22]}…"),
        )
    axes.set_aspect("equal", adjustable="datalim")
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(True)
    axes.set_title("t-SNE of pooled features")
    if names:
        axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), handletextpad=0.3)
    return drawn
