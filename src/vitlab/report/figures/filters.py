"""`filters`: first filters of the model over pixels (arXiv:2010.11929, figure 7 left)."""

from typing import Any

from vitlab.explain.weights import first_filters
from vitlab.report.figures.figure import Figure, Seen, array, counted, plain
from vitlab.report.plots import as_colours, new_figure, no_frame

COMPONENTS, FILTERS = 28, 64
"""Number of components, as in the paper; number of filters of a convolution."""
COLUMNS = {"components": 7, "filters": 16}


def build(seen: Seen) -> Figure:
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
            f"{what} of the {found.layer} of {seen.name}, {height} x {width} pixels of "
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


def draw(figure: Figure) -> Any:
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
