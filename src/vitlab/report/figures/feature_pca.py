"""`feature-pca`: the features of patches as colours, their first three principal components."""

from typing import Any

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from vitlab.explain.embedding import principal_components
from vitlab.images.preprocessing import Preprocessing
from vitlab.report.figures.figure import Figure, Seen, array, counted, plain, transformer
from vitlab.report.plots import PAGE, new_figure, no_frame

PICTURES, BESIDE = 8, 8
CUT = 0.01
"""Share of the patches at either end that are clipped to the darkest or brightest colour."""


def check(model: nn.Module) -> None:
    """Raise for a model without patches."""
    transformer(model, "feature-pca", "patch tokens")


def spread(images: int) -> frozenset[int]:
    """Indices of the shown images: spread over the set, since it is sorted by class."""
    shown = min(images, PICTURES)
    return frozenset(number * images // shown for number in range(shown))


def build(seen: Seen) -> Figure:
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


def draw(figure: Figure) -> Any:
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
