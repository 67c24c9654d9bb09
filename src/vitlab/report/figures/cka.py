"""`cka`: similarity of the layers' features of the same images (arXiv:1905.00414)."""

from typing import Any

from torch import nn

from vitlab.errors import Lacks
from vitlab.explain.embedding import LEAST_IMAGES, linear_cka, unbiased_cka
from vitlab.explain.statistics import stacked
from vitlab.report.figures.figure import Figure, Seen, array, counted, plain, with_blocks
from vitlab.report.plots import COLUMN, SHARE, new_figure, show_colours


def check(model: nn.Module) -> None:
    """Raise for a model without layers of tokens."""
    with_blocks(model, "cka", "layers of tokens")


def build(seen: Seen) -> Figure:
    if seen.images < LEAST_IMAGES:
        raise Lacks(f"cka: {counted(seen.images, 'image')}; valid: at least {LEAST_IMAGES}")
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


def draw(figure: Figure) -> Any:
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
