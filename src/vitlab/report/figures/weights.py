"""Figures of weights, without images: `filters` and `positions` (arXiv:2010.11929, figure 7)."""

from typing import Any

import numpy as np
from jaxtyping import Float
from torch import Tensor

from vitlab.explain.weights import (
    bias_tables,
    cosine_maps,
    first_filters,
    offset_tables,
    position_tables,
)
from vitlab.report.figures.figure import Figure, Seen, array, plain
from vitlab.report.numbers import counted
from vitlab.report.plots import (
    COLUMN,
    PAGE,
    SIGNED,
    SIMILARITY,
    as_colours,
    new_figure,
    no_frame,
    show_colours,
)

# `filters`: first filters of the model over pixels.

COMPONENTS, FILTERS = 28, 64
"""Number of components, as in the paper; number of filters of a convolution."""
COLUMNS = {"components": 7, "filters": 16}


def build_filters(seen: Seen) -> Figure:
    found = first_filters(seen.model, COMPONENTS)
    if found.kind == "filters":
        found = first_filters(seen.model, FILTERS)
    channels, height, width = found.images.shape[1:]
    shown = {1: "grey", 3: "RGB"}.get(channels, f"the first {3 if channels > 3 else 1} of them")
    what = (
        f"The first {len(found.images)} principal components of {found.total} filters"
        if found.kind == "components"
        else f"The {len(found.images)} strongest of {found.total} filters"
    )
    return Figure(
        caption=(
            f"{what} of the {found.layer} of {seen.name}, {width} x {height} pixels of "
            f"{counted(channels, 'channel')} ({shown}), each scaled by its largest number, "
            f"grey being zero."
        ),
        data={
            "kind": found.kind,
            "layer": found.layer,
            "total": found.total,
            "variance_shares": None if found.shares is None else plain(found.shares),
            "images": plain(found.images),
        },
    )


def draw_filters(figure: Figure) -> Any:
    data = figure.data
    pictures = as_colours(array(data["images"]))
    columns = min(COLUMNS[data["kind"]], len(pictures))
    rows = -(-len(pictures) // columns)
    height, width = pictures.shape[1:3]
    side = 5.2 / COLUMNS[data["kind"]]
    room = 0.17 if data["variance_shares"] else 0.0
    drawn = new_figure(
        max(columns * side, 3.2), rows * (side * min(height / width, 2) + room) + 0.3
    )
    axes = drawn.subplots(rows, columns, squeeze=False).flat
    for number, place in enumerate(axes):
        no_frame(place)
        if number >= len(pictures):
            continue
        place.imshow(pictures[number], interpolation="nearest")
        if data["variance_shares"]:
            share = 100 * data["variance_shares"][number]
            place.set_title(f"{share:.{1 if share < 10 else 0}f} %", fontsize=7, pad=2)
    kinds = {
        "components": f"{data['layer'].capitalize()}: principal components, share of variance",
        "filters": f"Filters of the {data['layer']}, strongest first",
    }
    drawn.suptitle(kinds[data["kind"]], fontsize=9.5 if columns > 4 else 7.5)
    return drawn


# `positions`: similarity of position embeddings.

MOST = 16
"""Rows and columns of maps in one panel; of a larger grid, every second or third place."""
SIDE = 4
"""Panels per row, if layers have separate tables."""


def check_positions(model: Any) -> None:
    """Raise for a model without any table."""
    if not (offset_tables(model) or bias_tables(model)):
        position_tables(model)


def build_positions(seen: Seen) -> Figure:
    offsets, biases = offset_tables(seen.model), bias_tables(seen.model)
    if offsets:
        return _offsets(seen, offsets)
    if biases:
        return _biases(seen, biases)
    return _similarity(seen)


def _offsets(seen: Seen, tables: list[Float[Tensor, "_ K"]]) -> Figure:
    return Figure(
        caption=(
            f"Embeddings of relative positions of {seen.name}, layer by layer: a vector of "
            f"{tables[0].shape[1]} numbers, which all heads share, for each offset between query "
            f"and key along the order of reading (negative: the key comes first)."
        ),
        # Row i of a table is for the key that comes n // 2 - i places after the query.
        data={"kind": "offsets", "tables": [plain(table.flip(0)) for table in tables]},
    )


def _biases(seen: Seen, tables: list[Float[Tensor, "A _ _"]]) -> Figure:
    return Figure(
        caption=(
            f"Relative positions of {seen.name}: what each head adds to its scores, by row and "
            f"column of the key minus those of the query. Offset zero is in the middle; a layer "
            f"in a row, a head in a column."
        ),
        data={"kind": "bias", "tables": [plain(table) for table in tables]},
    )


def _similarity(seen: Seen) -> Figure:
    tables = position_tables(seen.model)
    config: Any = seen.model.config
    rows, columns = (list(range(0, size, -(-size // MOST))) for size in config.grid)
    maps = [cosine_maps(table)[rows][:, columns] for table in tables]
    whose = {
        "stem": "added to the patches",
        "every_layer": "of each layer",
        "shared_layers": "added before every layer",
    }
    fixed = " (fixed by a formula, not learned)" if config.position == "sincos2d" else ""
    return Figure(
        caption=(
            f"Cosine similarity between the position embedding{fixed} of the patch at each row and "
            f"column and those of all patches, {config.position} {whose[config.position_at]}, in "
            f"{seen.name}. Prefix tokens have no place and are left out."
        ),
        data={
            "kind": config.position,
            "grid": list(config.grid),
            "rows": rows,
            "columns": columns,
            "maps": [plain(found) for found in maps],
        },
    )


def draw_positions(figure: Figure) -> Any:
    kinds = {"offsets": _draw_offsets, "bias": _draw_biases}
    return kinds.get(figure.data["kind"], _draw_maps)(figure.data)


def mosaic(maps: Float[np.ndarray, "r c h w"]) -> Float[np.ndarray, "H W"]:
    """All maps in one image, at the places of their patches, with a gap between them."""
    rows, columns, height, width = maps.shape
    gap = max(1, round(max(height, width) / 10))
    picture = np.full(
        (rows * (height + gap) - gap, columns * (width + gap) - gap), np.nan, dtype=np.float64
    )
    for i in range(rows):
        for j in range(columns):
            top, left = i * (height + gap), j * (width + gap)
            picture[top : top + height, left : left + width] = maps[i, j]
    return picture


def _draw_maps(data: dict[str, Any]) -> Any:
    panels = [array(found) for found in data["maps"]]
    across = len(data["rows"]) * data["grid"][0] / len(data["columns"]) / data["grid"][1]
    drawn, places = _panels(len(panels), across)
    shown = None
    for number, (axes, maps) in enumerate(zip(places, panels, strict=False)):
        picture = mosaic(maps)
        shown = axes.imshow(picture, cmap=SIMILARITY, vmin=-1, vmax=1, interpolation="nearest")
        axes.spines[:].set_visible(False)
        _ticks(axes.xaxis, data["columns"], picture.shape[1], maps.shape[3])
        _ticks(axes.yaxis, data["rows"], picture.shape[0], maps.shape[2])
        if len(panels) > 1:
            axes.set_title(f"layer {number}")
    _name(drawn, places, "input patch column", "input patch row", "Position embedding similarity")
    bar = drawn.colorbar(shown, ax=places[: len(panels)], shrink=0.8, ticks=[-1, -0.5, 0, 0.5, 1])
    show_colours(bar, "cosine similarity")
    return drawn


def _ticks(axis: Any, numbers: list[int], length: int, size: int) -> None:
    """Label the centre of each map, or of some if there are many."""
    step = (length - size) / (len(numbers) - 1) if len(numbers) > 1 else 0.0
    every = max(1, -(-len(numbers) // 8))
    centres = [(size - 1) / 2 + step * place for place in range(len(numbers))]
    axis.set_ticks(centres[::every], [str(number) for number in numbers[::every]])
    axis.set_tick_params(length=0)


def _draw_offsets(data: dict[str, Any]) -> Any:
    tables = [array(table).T for table in data["tables"]]  # [K, O]
    most = max(float(np.abs(table).max()) for table in tables)
    drawn, places = _panels(len(tables), 0.8)
    shown = None
    for number, (axes, table) in enumerate(zip(places, tables, strict=False)):
        reach = table.shape[1] // 2  # smaller if later blocks have fewer patches
        shown = axes.imshow(
            table,
            cmap=SIGNED,
            vmin=-most,
            vmax=most,
            aspect="auto",
            interpolation="nearest",
            extent=(-reach - 0.5, reach + 0.5, table.shape[0] - 0.5, -0.5),
        )
        if len(tables) > 1:
            axes.set_title(f"layer {number}")
    _name(
        *(drawn, places),
        x="offset of the key from the query, in patches",
        y="number in the embedding",
        title="Embeddings of relative positions",
    )
    show_colours(drawn.colorbar(shown, ax=places[: len(tables)], shrink=0.8), "value")
    return drawn


def _draw_biases(data: dict[str, Any]) -> Any:
    tables = [array(table) for table in data["tables"]]  # [A, h, w]
    most = max(float(np.abs(table).max()) for table in tables)
    heads, height, width = tables[0].shape
    side = (PAGE - 1.4) / max(heads, 4)
    drawn = new_figure(
        heads * side + 1.4, len(tables) * (side * min(height / width, 2.5) + 0.06) + 0.7
    )
    places = list(drawn.subplots(len(tables), 1, squeeze=False).flat)
    shown = None
    for number, (axes, table) in enumerate(zip(places, tables, strict=True)):
        picture = mosaic(table[None])
        shown = axes.imshow(picture, cmap=SIGNED, vmin=-most, vmax=most, interpolation="nearest")
        axes.spines[:].set_visible(False)
        last = axes is places[-1]
        _ticks(axes.xaxis, list(range(heads)) if last else [], picture.shape[1], table.shape[2])
        axes.set_yticks([(picture.shape[0] - 1) / 2], [str(number)])
        axes.tick_params(length=0)
    _name(
        *(drawn, places),
        x="head",
        y="layer",
        title="Relative positions: what is added to scores",
    )
    show_colours(drawn.colorbar(shown, ax=places, shrink=0.8), "added to the score")
    return drawn


def _name(drawn: Any, places: list[Any], x: str, y: str, title: str) -> None:
    """Label the axes: of the one panel, or of the figure."""
    if len(places) == 1:
        places[0].set(xlabel=x, ylabel=y, title=title)
        return
    drawn.supxlabel(x, fontsize=9)
    drawn.supylabel(y, fontsize=9)
    drawn.suptitle(title, fontsize=10)


def _panels(count: int, aspect: float) -> tuple[Any, list[Any]]:
    """Figure of `count` panels of height / width `aspect`; the remaining ones stay empty."""
    columns = min(count, SIDE)
    rows = -(-count // columns)
    side = COLUMN - 1.1 if count == 1 else 2.0
    height = side * min(max(aspect, 0.25), 2.5)
    drawn = new_figure(columns * side + 1.2, rows * (height + 0.2) + (0.5 if count == 1 else 0.7))
    places = list(drawn.subplots(rows, columns, squeeze=False).flat)
    for empty in places[count:]:
        empty.set_axis_off()
    return drawn, places
