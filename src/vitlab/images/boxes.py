"""Random rectangles inside an image; without torch, for the processes that decode."""

import math
from random import Random
from typing import NamedTuple

ATTEMPTS = 10


class Box(NamedTuple):
    """Pixels from `top` to before `bottom` and from `left` to before `right`."""

    top: int
    left: int
    bottom: int
    right: int


def random_box(
    size: tuple[int, int],
    *,
    area: tuple[float, float],
    ratio: tuple[float, float],
    draw: Random,
) -> Box | None:
    """A rectangle with a share of the area and a width / height within bounds; None: none fitted.

    The share is drawn uniformly and the ratio log-uniformly, as in "Inception" cropping.
    """
    height, width = size
    for _ in range(ATTEMPTS):
        pixels = _between(*area, draw.random()) * height * width
        proportion = math.exp(_between(math.log(ratio[0]), math.log(ratio[1]), draw.random()))
        rows, columns = round((pixels / proportion) ** 0.5), round((pixels * proportion) ** 0.5)
        if 0 < rows <= height and 0 < columns <= width:
            top = int(draw.random() * (height - rows + 1))
            left = int(draw.random() * (width - columns + 1))
            return Box(top, left, top + rows, left + columns)
    return None


def central_box(size: tuple[int, int], ratio: tuple[float, float]) -> Box:
    """The largest centred rectangle whose width / height is within bounds."""
    height, width = size
    columns = min(width, max(1, round(height * ratio[1])))
    rows = min(height, max(1, round(width / ratio[0])))
    top, left = (height - rows) // 2, (width - columns) // 2
    return Box(top, left, top + rows, left + columns)


def crop_box(
    size: tuple[int, int], *, area: tuple[float, float], ratio: tuple[float, float], seed: int
) -> Box:
    """Region of a random resized crop: a random rectangle, else the largest central one."""
    found = random_box(size, area=area, ratio=ratio, draw=Random(seed))
    return central_box(size, ratio) if found is None else found


def _between(low: float, high: float, share: float) -> float:
    return low + (high - low) * share
