"""The contact sheet of a job: its images with what the model sees on them."""

from collections.abc import Sequence
from itertools import chain, repeat
from pathlib import Path

from vitlab.contact_sheet import LIMIT, Tile, write_contact_sheet
from vitlab.data.look import tile_image
from vitlab.inference.predictor import Prediction

SHOWN = LIMIT
"""Images of a job that a sheet shows."""


def write_sheet(path: Path, shown: Sequence[Prediction], *, images: int, model: str) -> None:
    """Draw the first images of a job, and say how many more it has."""
    tiles = [_tile(prediction) for prediction in shown]
    more = repeat(tiles[-1], images - len(tiles))
    title = f"{images:,} image{'s' * (images != 1)}, labelled by {Path(model).name}"
    write_contact_sheet(path, chain(tiles, more), title=title)


def _tile(prediction: Prediction) -> Tile:
    file = Path(prediction.path or "")
    if prediction.error is not None:
        return Tile(image=file, caption=f"cannot be read\n{file.name}", mark="bad")
    if prediction.label is None:
        told = "\n".join(prediction.answers[:2]) or "no label"
        return Tile(image=tile_image(file), caption=f"{told}\n{file.name}")
    caption = f"{prediction.label}\n{prediction.probability:.1%} · {file.name}"
    return Tile(image=tile_image(file), caption=caption)
