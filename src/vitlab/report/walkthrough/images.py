"""Tensors and images as small images inside a page: one cell per number, with Pillow only.

Colours are drawn on a transparent background: zero has the page's own colour, light or dark.
"""

import base64
import io

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image, ImageDraw

from vitlab.report.html import Html, element, join

POSITIVE, NEGATIVE = (213, 94, 0), (0, 114, 178)
"""Okabe and Ito's orange and blue, distinct with every kind of colour vision."""
MOST = 320
"""Rows or columns of one image; of a larger tensor, every second or third."""
SIDE = 600
"""Approximate pixels of the longer side of a photograph; screens may show two of them as one."""
WIDE = 372
"""Width or height of a matrix in the page, in pixels: two fit side by side."""
MARK = (240, 120, 20)

Numbers = Float[np.ndarray, "rows columns"]


def tensor(
    name: str | Html,
    values: Numbers,
    *,
    note: str = "",
    row: int | None = None,
    side: int = WIDE,
) -> Html:
    """Image of a matrix with its name and shape; one row may be marked."""
    steps = tuple(-(-size // MOST) for size in values.shape)
    shown = values[:: steps[0], :: steps[1]]
    size = ", ".join(map(str, values.shape))
    sides = zip(steps, ("row", "column"), strict=True)
    thinned = [f"every {ordinal(step)} {line}" for step, line in sides if step > 1]
    notes = ", ".join(part for part in (note, " and ".join(thinned)) if part)
    rows, columns = shown.shape
    wide = columns >= 6 * rows
    width = _width(rows, columns, side)
    frame = element(
        "div",
        element("img", src=png(coloured(shown)), alt=f"{size} numbers", class_="cells"),
        None if row is None else _marked(row, values.shape[0]),
        class_="strip" if wide else "matrix",
        style=None if wide else f"aspect-ratio: {columns} / {rows}; width: {width}px",
    )
    caption = join([element("b", name), f" [{size}]", f", {notes}" if notes else ""])
    return element("figure", frame, element("figcaption", caption), class_="tensor")


def vector(name: str | Html, values: Float[np.ndarray, " n"], *, note: str = "") -> Html:
    """Image of one vector, and its first numbers."""
    first = ", ".join(number(value) for value in values[:4])
    more = ", …" if len(values) > 4 else ""
    frame = element(
        "div",
        element(
            "img", src=png(coloured(values[None])), alt=f"{len(values)} numbers", class_="cells"
        ),
        class_="strip",
    )
    caption = join(
        [element("b", name), f" [{len(values)}] = ({first}{more})", f", {note}" if note else ""]
    )
    return element("figure", frame, element("figcaption", caption), class_="tensor")


def photograph(
    pixels: UInt8[np.ndarray, "H W 3"],
    caption: str | Html,
    *,
    grid: tuple[int, int] | None = None,
    patch: int | None = None,
    weights: Float[np.ndarray, " P"] | None = None,
    small: bool = False,
) -> Html:
    """Image with its patches, one of them marked, each with the brightness of its weight."""
    factor = max(1, round(SIDE / (2 if small else 1) / max(pixels.shape[:2])))
    large = pixels.repeat(factor, axis=0).repeat(factor, axis=1)
    if weights is not None and grid is not None:
        large = _lit(large, weights.reshape(grid))
    picture = Image.fromarray(large)
    if grid is not None:
        _draw_grid(picture, grid, patch, lines=weights is None)
    shown = element("img", src=png_of(picture), alt="the image", class_="photo")
    return element(
        *("figure", shown, element("figcaption", caption)),
        class_="picture small" if small else "picture",
    )


def coloured(values: Numbers) -> UInt8[np.ndarray, "rows columns 4"]:
    """Orange above zero and blue below, stronger with distance; grey for missing numbers."""
    finite = np.isfinite(values)
    known = np.where(finite, values, 0.0)
    top = float(np.abs(known).max(initial=0.0))
    strength = np.clip(np.abs(known) / top, 0.0, 1.0) if top else np.zeros_like(known)
    cells = np.empty((*values.shape, 4), dtype=np.uint8)
    cells[..., :3] = np.where((known > 0)[..., None], POSITIVE, NEGATIVE)
    # Square root: most numbers are small beside the largest, and should be visible.
    cells[..., 3] = np.rint(255 * np.sqrt(strength))
    cells[~finite] = (128, 128, 128, 90)
    return cells


def png(cells: UInt8[np.ndarray, "rows columns 4"]) -> str:
    """Data URL of a PNG of these cells."""
    return png_of(Image.fromarray(cells))


def png_of(picture: Image.Image) -> str:
    """Data URL of a PNG."""
    file = io.BytesIO()
    picture.save(file, format="png")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode('ascii')}"


def number(value: float) -> str:
    """Four decimals, with a typographic minus; tiny numbers by their power of ten."""
    if not np.isfinite(value):
        return "−∞"
    text = f"{value:.1e}" if 0 < abs(value) < 5e-5 else f"{value:.4f}"
    return text.replace("-", "−")


def _lit(
    pixels: UInt8[np.ndarray, "H W 3"], weights: Float[np.ndarray, "h w"]
) -> UInt8[np.ndarray, "H W 3"]:
    """Image dimmed and grey where attention is low, unchanged where it is highest."""
    height, width = pixels.shape[:2]
    rows = np.arange(height) * weights.shape[0] // height
    columns = np.arange(width) * weights.shape[1] // width
    light = (weights / (weights.max() or 1.0))[rows][:, columns, None]
    grey = pixels.mean(axis=2, keepdims=True)
    return (light * pixels + (1 - light) * (20 + 0.3 * grey)).astype(np.uint8)


def _draw_grid(
    picture: Image.Image, grid: tuple[int, int], patch: int | None, *, lines: bool
) -> None:
    draw = ImageDraw.Draw(picture, "RGBA")
    width, height = picture.size
    across = [round(width * column / grid[1]) for column in range(grid[1] + 1)]
    down = [round(height * row / grid[0]) for row in range(grid[0] + 1)]
    for x in across[1:-1] if lines else ():
        draw.line([(x, 0), (x, height)], fill=(255, 255, 255, 140), width=2)
    for y in down[1:-1] if lines else ():
        draw.line([(0, y), (width, y)], fill=(255, 255, 255, 140), width=2)
    if patch is not None:
        row, column = divmod(patch, grid[1])
        box = (across[column], down[row], across[column + 1] - 1, down[row + 1] - 1)
        draw.rectangle(box, outline=(*MARK, 255), width=max(3, picture.width // 90))


def _marked(row: int, rows: int) -> Html:
    """Frame over one row of the image below it."""
    place = f"top: {100 * row / rows:.3f}%; height: {100 / rows:.3f}%"
    return element("span", class_="marked", style=place)


def _width(rows: int, columns: int, side: int) -> int:
    """Width of a matrix in pixels: visible cells, and a limited size."""
    cell = min(12.0, side / columns, side / rows)
    return max(24, round(columns * cell))


def ordinal(number: int) -> str:
    """`second`, `third`, `4th`."""
    return {2: "second", 3: "third"}.get(number, f"{number}th")
