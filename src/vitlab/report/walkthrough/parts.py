"""Parts of the walkthrough: steps, formulas, worked sums, names of tokens, and tensors as images.

A tensor is drawn with one cell per number, with Pillow only, on a transparent background: zero has
the page's own colour, light or dark.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image, ImageColor, ImageDraw
from torch import Tensor

from vitlab.explain.steps import Linear
from vitlab.explain.walkthrough import Walkthrough
from vitlab.report.html import Child, Html, element, join, png_url, row, said, scrolling, table
from vitlab.report.language import say
from vitlab.report.numbers import number, ordinal
from vitlab.report.style import BLUE, ORANGE

TERMS = 3
"""Number of products of a sum that are written out."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """One step of the computation as the page shows it."""

    title: str
    shape: str
    content: Sequence[Child]


def paragraph(*parts: Child) -> Html:
    """Text, possibly with markup."""
    return element("p", *map(said, parts))


def formula(text: str) -> Html:
    """A formula: `q_i` has a lower index, `K^T` an upper one; braces hold longer ones."""
    return element("p", maths(say(text)), class_="formula")


def maths(text: str) -> Html:
    """A formula within a sentence."""
    parts: list[Child] = []
    rest = text
    while rest:
        places = [place for place in (rest.find("_"), rest.find("^")) if place >= 0]
        if not places:
            parts.append(rest)
            break
        place = min(places)
        tag = "sub" if rest[place] == "_" else "sup"
        parts.append(rest[:place])
        rest = rest[place + 1 :]
        index, rest = rest[1:].split("}", 1) if rest[0] == "{" else (rest[0], rest[1:])
        parts.append(element(tag, index))
    return join(parts)


def tensors(*figures: Child) -> Html:
    """Images side by side, as many as fit."""
    return element("div", *figures, class_="tensors")


def worked(what: str, first: Sequence[float], second: Sequence[float], bias: float | None) -> Html:
    """A sum of products with its first terms written out: `what = a · b + … = total`."""
    terms = [
        f"({number(a)} × {number(b)})" for a, b in zip(first[:TERMS], second[:TERMS], strict=True)
    ]
    total = float(np.dot(first, second)) + (bias or 0.0)
    if len(first) > TERMS:
        terms.append(say(f"… {len(first) - TERMS} more …"))
    if bias is not None:
        terms.append(say(f"{number(bias)} (bias)"))
    return element(
        "p",
        maths(say(what)),
        " = ",
        " + ".join(terms),
        " = ",
        element("b", number(total)),
        class_="worked",
    )


def worked_row(what: str, layer: Linear, x: Float[Tensor, " I"]) -> Html:
    """First output of a linear layer for a vector."""
    bias = None if layer.bias is None else float(layer.bias[0])
    return worked(what, layer.weight[0].tolist(), x.tolist(), bias)


def marked_table(columns: Sequence[Child], rows: Iterable[tuple[str, Sequence[str]]]) -> Html:
    """Rows with a class each: `own`, `total` or nothing."""
    body = (row(cells, kind=kind or None) for kind, cells in rows)
    return scrolling(table(columns, body))


def shape(*sizes: int) -> str:
    """`[64, 48]`."""
    return f"[{', '.join(map(str, sizes))}]"


def token_name(walk: Walkthrough, token: int, *, class_token: bool) -> str:
    """`class token`, `register 2` or `patch 3,4` (row and column)."""
    if token >= walk.prefix:
        row, column = divmod(token - walk.prefix, walk.grid[1])
        return say(f"patch {row},{column}")
    if class_token and not token:
        return say("class token")
    return say(f"register {token + (not class_token)}")


# Tensors and images, drawn.

POSITIVE, NEGATIVE = ImageColor.getrgb(ORANGE), ImageColor.getrgb(BLUE)
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
    marked: int | None = None,
    side: int = WIDE,
) -> Html:
    """Image of a matrix with its name and shape; one row may be marked."""
    steps = tuple(-(-size // MOST) for size in values.shape)
    shown = values[:: steps[0], :: steps[1]]
    size = ", ".join(map(str, values.shape))
    sides = zip(steps, ("row", "column"), strict=True)
    thinned = [say(f"every {ordinal(step)} {line}") for step, line in sides if step > 1]
    notes = ", ".join(part for part in (say(note), f" {say('and')} ".join(thinned)) if part)
    rows, columns = shown.shape
    wide = columns >= 6 * rows
    width = _width(rows, columns, side)
    frame = element(
        "div",
        element("img", src=_cells(shown), alt=say(f"{size} numbers"), class_="cells"),
        None if marked is None else _marked(marked, values.shape[0]),
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
        element("img", src=_cells(values[None]), alt=say(f"{len(values)} numbers"), class_="cells"),
        class_="strip",
    )
    caption = join(
        [
            element("b", name),
            f" [{len(values)}] = ({first}{more})",
            f", {say(note)}" if note else "",
        ]
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
    shown = element("img", src=png_url(picture), alt=say("the image"), class_="photo")
    return element(
        *("figure", shown, element("figcaption", said(caption))),
        class_="picture small" if small else "picture",
    )


def _cells(values: Numbers) -> str:
    """Data URL of an image with a cell for each number."""
    return png_url(Image.fromarray(coloured(values)))


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
