"""`attention-distance` and `attention-entropy`: distance and entropy of heads, by depth."""

import math
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitlab.explain.statistics import patch_distances
from vitlab.models.config import pair
from vitlab.report.figures.figure import Figure, Seen, array, plain, with_blocks
from vitlab.report.numbers import counted
from vitlab.report.plots import BLUE, COLUMN, FAINT, ORANGE, QUIET, new_figure

HEIGHT = 3.2
ROUND = tuple(digit * 10**zeros for zeros in range(6) for digit in (1, 2, 5))
"""Numbers of tokens that an axis may show."""


def check_distance(model: nn.Module) -> None:
    """Raise for a model without attention."""
    with_blocks(model, "attention-distance", "attention")


def check_entropy(model: nn.Module) -> None:
    """Raise for a model without attention."""
    with_blocks(model, "attention-entropy", "attention")


def build_distance(seen: Seen) -> Figure:
    model = with_blocks(seen.model, "attention-distance", "attention")
    size = pair(model.config.image_size)
    layers = []
    for number, looks in sorted(seen.gathered.attention.items()):
        stride = (size[0] / looks.grid[0], size[1] / looks.grid[1])
        layers.append(
            {
                "layer": number,
                "grid": list(looks.grid),
                **_over_images("distance", torch.cat(looks.distance)),
                "evenly": plain(patch_distances(looks.grid, stride).mean()),
                "prefix_share": plain(torch.cat(looks.prefix_share).double().mean(dim=0)),
            }
        )
    left_out = (
        f" Class token and registers ({model.config.prefix} in all) are neither queries nor keys; "
        "the weights of each query are divided by their sum over the patches."
        if model.config.prefix
        else ""
    )
    return Figure(
        caption=(
            f"Mean attention distance of the heads of {seen.name} by depth, in pixels of its "
            f"{size[1]} x {size[0]} input: the distance between the centres of query and key "
            f"patch, weighted by attention, averaged over queries and "
            f"{counted(seen.images, 'image')}.{left_out} "
            f"Dashed: a head that looks at all patches evenly."
        ),
        data={"unit": "pixels", "image_size": list(size), "layers": layers},
    )


def build_entropy(seen: Seen) -> Figure:
    with_blocks(seen.model, "attention-entropy", "attention")
    layers = [
        {
            "layer": number,
            "tokens": looks.tokens,
            **_over_images("entropy", torch.cat(looks.entropy)),
            "evenly": plain(torch.tensor(math.log(looks.tokens), dtype=torch.float64)),
        }
        for number, looks in sorted(seen.gathered.attention.items())
    ]
    return Figure(
        caption=(
            f"Entropy of the attention of the heads of {seen.name} by depth, in nats, over all "
            f"tokens as keys, averaged over all tokens as queries and "
            f"{counted(seen.images, 'image')}. Right: its exponential, the number of tokens that "
            f"even attention would spread over. Dashed: all tokens."
        ),
        data={"unit": "nats", "layers": layers},
    )


def draw_distance(figure: Figure) -> Any:
    drawn, axes = _draw(figure, "distance")
    axes.set_ylabel("mean attention distance (pixels)")
    axes.set_title("Attention distance by depth")
    return drawn


def draw_entropy(figure: Figure) -> Any:
    drawn, axes = _draw(figure, "entropy")
    axes.set_ylabel("attention entropy (nats)")
    axes.set_title("Attention entropy by depth")
    low, high = axes.get_ylim()
    beside = axes.twinx()
    beside.set_ylim(low, high)
    fitting = [n for n in ROUND if low <= math.log(n) <= high]
    beside.set_yticks([math.log(n) for n in fitting], [f"{n:,}" for n in fitting])
    beside.set_ylabel("tokens attended to (exp. of entropy)")
    beside.spines["right"].set_visible(True)
    return drawn


def _over_images(name: str, values: Float[Tensor, "n A"]) -> dict[str, Any]:
    """Mean over images of each head, and the deviation between images."""
    values = values.double()
    mean = values.nanmean(dim=0)
    deviation = (values - mean).square().nanmean(dim=0).sqrt()
    return {name: plain(mean), f"{name}_std": plain(deviation)}


def _draw(figure: Figure, name: str) -> tuple[Any, Any]:
    """Draw a point for each head, the mean of each layer, and the value of uniform attention."""
    layers = figure.data["layers"]
    drawn = new_figure(COLUMN, HEIGHT)
    axes = drawn.add_subplot()
    depth = [layer["layer"] for layer in layers]
    values = array([layer[name] for layer in layers])  # [L, A]
    evenly = [layer["evenly"] for layer in layers]
    axes.plot(
        depth, evenly, color=QUIET, linestyle=(0, (4, 3)), linewidth=1.2, label="looking evenly"
    )
    for head in range(values.shape[1]):
        axes.scatter(
            depth,
            values[:, head],
            s=22,
            color=BLUE,
            alpha=0.75,
            linewidths=0,
            label="one head" if not head else None,
        )
    axes.plot(depth, values.mean(axis=1), color=ORANGE, linewidth=1.4, label="mean of heads")
    axes.set_xlabel("layer")
    axes.set_xticks(depth[:: -(-len(depth) // 12)])
    axes.set_xlim(-0.5, len(depth) - 0.5)
    axes.set_ylim(0, 1.08 * np.nanmax([*values.ravel(), *evenly]))
    axes.grid(axis="y", color=FAINT, linewidth=0.7)
    axes.legend(loc="best")
    return drawn, axes
