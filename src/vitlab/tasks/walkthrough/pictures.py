"""Tensors and images as small pictures inside a page: one cell a number, no library but Pillow.

Colours stand on a transparent ground, so that zero is the page's own colour, light or dark.
"""

import base64
import io

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image, ImageDraw

from vitlab.tasks.report.markup import Html, element, join

POSITIVE, NEGATIVE = (213, 94, 0), (0, 114, 178)
"""Okabe and Ito's orange and blue, which every kind of colour vision tells apart."""
MOST = 320
"""Rows or columns of one picture; of a larger tensor every second one is shown, or third."""
SIDE = 352
"""Pixels of the longer side of a photograph in the page."""
MARK = (240, 120, 20)

Numbers = Float[np.ndarray, "rows columns"]


def tensor(
    name: str | Html,
    values: Numbers,
    *,
    note: str = "",
    row: int | None = None,
    column: int | None = None,
    largest: float | None = None,
) -> Html:
    """A picture of a matrix with its name and shape; one row or column may be marked."""
    steps = tuple(-(-size // MOST) for size in values.shape)
    shown = values[:: steps[0], :: steps[1]]
    size = " x ".join(map(str, values.shape))
    skipped = max(steps) > 1
    thinned = f"every {_ordinal(max(steps))} row and column shown" if skipped else ""
    notes = "; ".join(part for part in (note, thinned) if part)
    wide = shown.shape[1] >= 6 * shown.shape[0]
    frame = element(
        "div",
        element("img", src=png(coloured(shown, largest)), alt=f"{size} numbers", class_="cells"),
        None if row is None else _marked("row", row, values.shape[0]),
        None if column is None else _marked("column", column, values.shape[1]),
        class_="strip" if wide else "matrix",
        style=None
        if wide
        else f"aspect-ratio: {shown.shape[1]} / {shown.shape[0]}; width: {_width(*shown.shape)}px",
    )
    caption = join([element("b", name), f" [{size}]", f" {notes}" if notes else ""])
    return element("figure", frame, element("figcaption", caption), class_="tensor")


def vector(name: str | Html, values: Float[np.ndarray, " n"], *, note: str = "") -> Html:
    """A picture of one vector, and its first numbers."""
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
        [element("b", name), f" [{len(values)}] = ({first}{more})", f" {note}" if note else ""]
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
    """The image, its patches, one of them marked, each as bright as its weight."""
    factor = max(1, round(SIDE / max(pixels.shape[:2])))
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


def coloured(values: Numbers, largest: float | None = None) -> UInt8[np.ndarray, "rows columns 4"]:
    """Orange above zero and blue below, the stronger the farther; grey where there is no number."""
    finite = np.isfinite(values)
    known = np.where(finite, values, 0.0)
    top = float(np.abs(known).max(initial=0.0)) if largest is None else largest
    strength = np.clip(np.abs(known) / top, 0.0, 1.0) if top else np.zeros_like(known)
    cells = np.empty((*values.shape, 4), dtype=np.uint8)
    cells[..., :3] = np.where((known > 0)[..., None], POSITIVE, NEGATIVE)
    # A root: most numbers are small beside the largest, and should be seen.
    cells[..., 3] = np.rint(255 * np.sqrt(strength))
    cells[~finite] = (128, 128, 128, 90)
    return cells


def png(cells: UInt8[np.ndarray, "rows columns 4"]) -> str:
    """A data address of a PNG of these cells."""
    return png_of(Image.fromarray(cells))


def png_of(picture: Image.Image) -> str:
    """A data address of a PNG."""
    file = io.BytesIO()
    picture.save(file, format="png", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode('ascii')}"


def number(value: float) -> str:
    """Four digits behind the point, with a real minus; tiny numbers by their power of ten."""
    if not np.isfinite(value):
        return "−∞"
    text = f"{value:.1e}" if 0 < abs(value) < 5e-5 else f"{value:.4f}"
    return text.replace("-", "−")


def _lit(
    pixels: UInt8[np.ndarray, "H W 3"], weights: Float[np.ndarray, "h w"]
) -> UInt8[np.ndarray, "H W 3"]:
    """The picture in grey and dark where little is looked at, as it is where most is."""
    height, width = pixels.shape[:2]
    rows = np.arange(height) * weights.shape[0] // height
    columns = np.arange(width) * weights.shape[1] // width
    light = (weights / (weights.max() or 1.0))[rows][:, columns, None]
    grey = pixels.mean(axis=2, keepdims=True)
    mixed = light * pixels + (1 - light) * (0.45 * grey)
    return (mixed * (0.25 + 0.75 * np.sqrt(light))).astype(np.uint8)


def _draw_grid(
    picture: Image.Image, grid: tuple[int, int], patch: int | None, *, lines: bool
) -> None:
    draw = ImageDraw.Draw(picture, "RGBA")
    width, height = picture.size
    across = [round(width * column / grid[1]) for column in range(grid[1] + 1)]
    down = [round(height * row / grid[0]) for row in range(grid[0] + 1)]
    for x in across[1:-1] if lines else ():
        draw.line([(x, 0), (x, height)], fill=(255, 255, 255, 130))
    for y in down[1:-1] if lines else ():
        draw.line([(0, y), (width, y)], fill=(255, 255, 255, 130))
    if patch is not None:
        row, column = divmod(patch, grid[1])
        box = (across[column], down[row], across[column + 1] - 1, down[row + 1] - 1)
        draw.rectangle(box, outline=(*MARK, 255), width=max(2, picture.width // 120))


def _marked(kind: str, place: int, size: int) -> Html:
    """A frame over one row or column of the picture below it."""
    start, length = 100 * place / size, 100 / size
    sides = f"top: {start:.3f}%; height: {length:.3f}%"
    if kind == "column":
        sides = f"left: {start:.3f}%; width: {length:.3f}%"
    return element("span", class_=f"marked {kind}", style=sides)


def _width(rows: int, columns: int) -> int:
    """Pixels that a matrix is wide: cells that can be seen, and no picture too large."""
    cell = max(1.0, min(12.0, 420 / columns, 420 / rows))
    return max(24, round(columns * cell))


def _ordinal(number: int) -> str:
    return {2: "second", 3: "third"}.get(number, f"{number}th")
