"""Figures of features over images: `feature-pca`, `tsne` and `cka`."""

from collections import Counter
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from vitlab.errors import Unsupported
from vitlab.explain.embedding import (
    LEAST_IMAGES,
    linear_cka,
    principal_components,
    tsne,
    unbiased_cka,
)
from vitlab.explain.statistics import stacked
from vitlab.images.preprocessing import Preprocessing
from vitlab.io.text import literal
from vitlab.report.figures.figure import Figure, Seen, array, plain, transformer, with_blocks
from vitlab.report.numbers import counted
from vitlab.report.plots import (
    CLASSES,
    COLUMN,
    FAINT,
    MARKERS,
    PAGE,
    SHARE,
    new_figure,
    no_frame,
    show_colours,
)
from vitlab.weights.labels import imagenet_labels, wordnet_ids

# `feature-pca`: the features of patches as colours, their first three principal components.

PCA_IMAGES, BESIDE = 8, 8
CUT = 0.01
"""Share of the patches at either end that are clipped to the darkest or brightest colour."""


def check_pca(model: nn.Module) -> None:
    """Raise for a model without patches."""
    transformer(model, "feature-pca", "patch tokens")


def spread(images: int) -> frozenset[int]:
    """Indices of the shown images: spread over the set, since it is sorted by class."""
    shown = min(images, PCA_IMAGES)
    return frozenset(number * images // shown for number in range(shown))


def build_pca(seen: Seen) -> Figure:
    patches = torch.cat(seen.gathered.patches).double()  # [n, h, w, D]
    components = principal_components(patches.flatten(0, 2), 3)
    colours = as_rgb(components.project(patches))
    assert seen.preprocessing is not None
    return Figure(
        caption=(
            f"Features of the patches of {counted(len(patches), 'image')} after the last layer of "
            f"{seen.name}: their first three principal components, over all these patches, "
            f"as red, green and blue, each from its {CUT:.0%} to its {1 - CUT:.0%} quantile."
        ),
        data={
            "images": [seen.names[number] for number in seen.gathered.shown],
            "grid": list(patches.shape[1:3]),
            "variance_shares": plain(components.shares),
            "rgb": plain(colours),
        },
        pictures=[shown(image, seen.preprocessing) for image in torch.cat(seen.gathered.pictures)],
    )


def as_rgb(coordinates: Float[Tensor, "n h w k"]) -> Float[Tensor, "n h w 3"]:
    """Each component from 0 to 1 between two quantiles; 0.5 if it is missing."""
    colours = coordinates.new_full((*coordinates.shape[:3], 3), 0.5)
    for number in range(coordinates.shape[3]):
        values = coordinates[..., number]
        low, high = values.quantile(CUT), values.quantile(1 - CUT)
        colours[..., number] = ((values - low) / (high - low).clamp(min=1e-12)).clamp(0, 1)
    return colours


def shown(
    image: Float[Tensor, "C H W"], preprocessing: Preprocessing
) -> UInt8[np.ndarray, "H W 3"]:
    """Model input as an image: its first three channels, or its first in grey."""
    mean, std = (torch.tensor(v)[:, None, None] for v in (preprocessing.mean, preprocessing.std))
    pixels = ((image * std + mean) * 255).round().clamp(0, 255).byte().permute(1, 2, 0).numpy()
    return pixels[..., :3] if pixels.shape[2] >= 3 else np.repeat(pixels[..., :1], 3, axis=2)


def draw_pca(figure: Figure) -> Any:
    maps = array(figure.data["rgb"])
    beside = min(BESIDE, len(maps))
    lines = -(-len(maps) // beside)
    side = PAGE / BESIDE
    tall = figure.pictures[0].shape[0] / figure.pictures[0].shape[1]
    drawn = new_figure(max(beside * side, 3.4), 2 * lines * side * min(tall, 2.5) + 0.3)
    axes = drawn.subplots(2 * lines, beside, squeeze=False)
    for place in axes.flat:
        no_frame(place)
    height, width = figure.pictures[0].shape[:2]
    for number, (picture, colours) in enumerate(zip(figure.pictures, maps, strict=True)):
        above, below = axes[2 * (number // beside) : 2 * (number // beside) + 2, number % beside]
        small = max(height, width) < 128
        above.imshow(picture, interpolation="nearest" if small else "antialiased")
        below.imshow(colours, interpolation="nearest", extent=(0, width, height, 0))
    drawn.suptitle(
        "Patch features: three principal components as red, green, blue",
        fontsize=10 if beside > 4 else 7.5,
    )
    return drawn


# `tsne`: images in the plane, similar ones close together (van der Maaten and Hinton, 2008).

PERPLEXITY = 30.0
SIDE = 4.6
"""Width of the points' area in inches."""
NAMED = 20
"""Number of classes with their own colour and mark; images of rarer ones are small and pale."""


def build_tsne(seen: Seen) -> Figure:
    pooled = torch.cat(seen.gathered.pooled)
    watch = None if seen.watch is None else partial(seen.watch, "t-SNE")
    perplexity = min(PERPLEXITY, max((len(pooled) - 1) / 3, 1.0))
    points = tsne(pooled, perplexity=perplexity, watch=watch)
    known = any(seen.labels)
    words = dict(zip(wordnet_ids(), imagenet_labels(), strict=True))
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


def draw_tsne(figure: Figure) -> Any:
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


# `cka`: similarity of the layers' features of the same images (arXiv:1905.00414).


def check_cka(model: nn.Module) -> None:
    """Raise for a model without layers of tokens."""
    with_blocks(model, "cka", "layers of tokens")


def build_cka(seen: Seen) -> Figure:
    if seen.images < LEAST_IMAGES:
        raise Unsupported(f"cka: {counted(seen.images, 'image')}; valid: at least {LEAST_IMAGES}")
    layers = stacked(seen.gathered.means)
    return Figure(
        caption=(
            f"Linear CKA between the layers of {seen.name} over {counted(seen.images, 'image')}, "
            f"by the unbiased estimate of HSIC. An image is the mean of its patch tokens: as they "
            f"enter the first block (in), and behind each block."
        ),
        data={
            "layers": ["in", *(str(layer) for layer in range(len(layers) - 1))],
            "cka": plain(unbiased_cka(layers)),
            "cka_biased": plain(linear_cka(layers)),
        },
    )


def draw_cka(figure: Figure) -> Any:
    names, values = figure.data["layers"], array(figure.data["cka"])
    drawn = new_figure(COLUMN, COLUMN * 0.84)
    axes = drawn.add_subplot()
    shown = axes.imshow(values, cmap=SHARE, vmin=0, vmax=1, origin="lower", interpolation="nearest")
    every = -(-len(names) // 14)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_ticks(range(0, len(names), every), names[::every])
        axis.set_tick_params(length=0)
        axis.set_label_text("layer")
    axes.spines[:].set_visible(False)
    axes.set_title("Similarity of layers")
    show_colours(drawn.colorbar(shown, ax=axes, shrink=0.9), "linear CKA (unbiased)")
    return drawn
