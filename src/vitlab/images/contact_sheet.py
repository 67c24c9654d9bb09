"""Contact sheet of many images, each with a caption and a mark: Pillow only, no torch."""

import bisect
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import groupby, islice
from pathlib import Path
from typing import Literal, cast

from PIL import Image, ImageDraw, ImageFont

from vitlab.errors import FileError, InputError, SeveralFrames
from vitlab.images.open import UNREADABLE, open_image
from vitlab.images.preprocessing import read_bands
from vitlab.io.files import check_parent, replacing

Mark = Literal["none", "good", "bad", "warn"]
Box = tuple[int, int, int, int]
Line = list[tuple[float, float]]

SCALE = 2
"""Every length below is drawn at twice its size, which is sharp on high-density screens."""
SIDE, PAD, GAP, MARGIN = 150 * SCALE, 8 * SCALE, 12 * SCALE, 24 * SCALE
"""Side of an image, padding in its card, gap between cards, margin at the edges."""
LIMIT = 120
"""Default number of images on one sheet."""
CAPTION_LINES = 3
PAGE, CARD, FRAME, EMPTY = "#f3f4f6", "#ffffff", "#d9dce1", "#eceef1"
INK, SOFT = "#1f2430", "#667085"
COLOURS: dict[Mark, str] = {"good": "#1a7f4b", "bad": "#c8322b", "warn": "#b86e00"}
SIGNS: dict[Mark, list[Line]] = {
    "good": [[(-0.45, 0.05), (-0.12, 0.38), (0.45, -0.32)]],
    "bad": [[(-0.33, -0.33), (0.33, 0.33)], [(-0.33, 0.33), (0.33, -0.33)]],
    "warn": [[(0.0, -0.5), (0.0, 0.12)], [(0.0, 0.42), (0.0, 0.44)]],
}
"""Strokes within a disc of radius 1, so that marks differ without colours too."""


@dataclass(frozen=True, kw_only=True)
class Tile:
    """One image of a sheet; an unreadable one is shown as an empty frame with the reason."""

    image: Image.Image | Path
    caption: str
    """Up to three lines; text that is too long loses its middle."""
    mark: Mark = "none"
    group: str = ""
    """Heading of neighbouring tiles of one group."""


@dataclass(frozen=True, kw_only=True)
class _Card:
    picture: Image.Image
    lines: Sequence[str]
    mark: Mark
    group: str


def write_contact_sheet(
    path: Path, tiles: Iterable[Tile], *, title: str = "", columns: int = 6, limit: int = LIMIT
) -> int:
    """Write a PNG of the first `limit` tiles and the number of the others; return the number drawn.

    Tiles are read one at a time: an image is reduced before the next one is opened.
    """
    check_name(path)
    if columns < 1 or limit < 1:
        raise InputError(f"columns {columns} and limit {limit} must be at least 1")
    given = iter(tiles)
    cards = [_card(tile) for tile in islice(given, limit)]
    more = sum(1 for _ in given)
    with replacing(path) as file:
        _draw(cards, _clean(title), columns, more).save(file, "PNG")
    return len(cards)


def check_name(path: Path) -> None:
    """Raise for a path that no sheet can be written to, before anything is computed."""
    if path.suffix.lower() != ".png":
        raise FileError(f"{path}: a contact sheet is a PNG; valid: a name that ends in .png")
    check_parent(path)


def _card(tile: Tile) -> _Card:
    lines = [_shorten(line, _font(12, line), SIDE) for line in _clean(tile.caption).split("\n")]
    try:
        picture = _fit(_shown(tile.image))
    except InputError as error:
        picture = _blank(str(error).removeprefix(f"{tile.image}: "))
    return _Card(
        picture=picture, lines=lines[:CAPTION_LINES], mark=tile.mark, group=_clean(tile.group)
    )


def _shown(image: Image.Image | Path) -> Image.Image:
    """RGB version of the image; of a file with several frames, the first."""
    try:
        return read_bands(image, 3)[0]
    except SeveralFrames:
        with open_image(cast(Path, image)) as first:
            return read_bands(first, 3)[0]


def _fit(image: Image.Image) -> Image.Image:
    """Whole image in a square: small images as whole pixels, large ones averaged."""
    longest = max(image.size)
    factor = SIDE // longest if longest <= SIDE // 4 else SIDE / longest
    size = (max(1, round(image.width * factor)), max(1, round(image.height * factor)))
    enlarged = longest <= SIDE // 4
    smooth = Image.Resampling.NEAREST if enlarged else Image.Resampling.LANCZOS
    square = Image.new("RGB", (SIDE, SIDE), EMPTY)
    square.paste(
        image.resize(size, smooth, reducing_gap=None if enlarged else 3.0),
        ((SIDE - size[0]) // 2, (SIDE - size[1]) // 2),
    )
    return square


def _blank(error: str) -> Image.Image:
    """Frame for an image that cannot be shown."""
    square = Image.new("RGB", (SIDE, SIDE), EMPTY)
    reason = error.partition("; valid: ")[0]
    if reason.startswith(UNREADABLE):
        reason = reason[len(UNREADABLE) : -1]
    lines = ["cannot be shown", *_wrap(reason, _font(11), SIDE - 4 * PAD, lines=5)]
    top = (SIDE - len(lines) * 15 * SCALE) // 2
    for number, line in enumerate(lines):
        _text(square, (SIDE // 2, top + number * 15 * SCALE), line, 11, SOFT, anchor="ma")
    return square


def _draw(cards: Sequence[_Card], title: str, columns: int, more: int) -> Image.Image:
    """Draw the sheet, from the title down to the note."""
    columns = max(1, min(columns, len(cards)))
    width = 2 * MARGIN + columns * (SIDE + 2 * PAD + GAP) - GAP
    width = max(width, 360 * SCALE)
    lines = max((len(card.lines) for card in cards), default=1)
    height = SIDE + 2 * PAD + lines * 16 * SCALE + 2 * SCALE
    places, top = [], MARGIN + (38 * SCALE if title else 0)
    headings: list[tuple[int, str]] = []
    for group, members in groupby(cards, key=lambda card: card.group):
        if group:
            headings.append((top, group))
            top += 30 * SCALE
        count = len(list(members))
        for i in range(count):
            left = MARGIN + i % columns * (SIDE + 2 * PAD + GAP)
            places.append((left, top + i // columns * (height + GAP)))
        top += -(-count // columns) * (height + GAP) + (GAP if group else 0)
    note = _note(len(cards), more)
    sheet = Image.new("RGB", (width, top - GAP + MARGIN + (26 * SCALE if note else 0)), PAGE)
    room = width - 2 * MARGIN
    _text(sheet, (MARGIN, MARGIN - 4 * SCALE), _shorten(title, _font(20, title), room), 20, INK)
    for place, heading in headings:
        text = _shorten(heading, _font(15, heading), room)
        _text(sheet, (MARGIN, place + 2 * SCALE), text, 15, INK)
    for card, (left, place) in zip(cards, places, strict=True):
        _draw_card(sheet, card, (left, place, left + SIDE + 2 * PAD, place + height))
    _text(sheet, (MARGIN, top + 2 * SCALE), note, 14, SOFT)
    return sheet


def _note(shown: int, more: int) -> str:
    if not shown:
        return "no images"
    return f"… and {more:,} more" if more else ""


def _draw_card(sheet: Image.Image, card: _Card, box: Box) -> None:
    colour = COLOURS.get(card.mark)
    ImageDraw.Draw(sheet).rounded_rectangle(
        box, 6 * SCALE, fill=CARD, outline=colour or FRAME, width=2 * SCALE if colour else SCALE
    )
    corner = (box[0] + PAD, box[1] + PAD)
    sheet.paste(card.picture, corner)
    for number, line in enumerate(card.lines):
        place = (corner[0], corner[1] + SIDE + (5 + 16 * number) * SCALE)
        _text(sheet, place, line, 12, SOFT if number else INK)
    if colour:
        centre = (corner[0] + SIDE - 14 * SCALE, corner[1] + 14 * SCALE)
        _draw_badge(sheet, centre, colour, SIGNS[card.mark])


def _draw_badge(
    sheet: Image.Image, centre: tuple[int, int], colour: str, strokes: list[Line]
) -> None:
    """Draw a disc with a sign at a large size and reduce it: Pillow does not antialias."""
    fine, radius = 4, 9 * SCALE
    side = 2 * (radius + SCALE) * fine
    disc = Image.new("RGBA", (side, side))
    draw = ImageDraw.Draw(disc)
    draw.ellipse((0, 0, side - 1, side - 1), fill="white")
    edge = SCALE * fine
    draw.ellipse((edge, edge, side - 1 - edge, side - 1 - edge), fill=colour)
    width = 2 * SCALE * fine
    for stroke in strokes:
        points = [(side / 2 + x * radius * fine, side / 2 + y * radius * fine) for x, y in stroke]
        draw.line(points, fill="white", width=width, joint="curve")
        for x, y in (points[0], points[-1]):
            half = width / 2
            draw.ellipse((x - half, y - half, x + half, y + half), fill="white")
    disc = disc.resize((side // fine, side // fine), Image.Resampling.BOX)
    sheet.paste(disc, (centre[0] - disc.width // 2, centre[1] - disc.height // 2), disc)


# Pillow's own font has the letters of English alone. Other text is drawn in a font of the system;
# letters that no font has are escaped, such as \u5f55.

FONTS = (
    *("DejaVuSans.ttf", "NotoSans-Regular.ttf", "LiberationSans-Regular.ttf", "Arial.ttf"),
    *("NotoSansCJK-Regular.ttc", "NotoSansCJKsc-Regular.otf", "wqy-microhei.ttc", "wqy-zenhei.ttc"),
    *("PingFang.ttc", "Arial Unicode.ttf", "msyh.ttc", "YuGothR.ttc", "malgun.ttf"),
)
"""Fonts of Linux, macOS and Windows with more letters, in the order of trial."""
NO_LETTER = "\U0010ffff"
"""A character that no font has: it is drawn as the sign for a missing one."""


def _font(size: int, text: str = "") -> ImageFont.FreeTypeFont:
    """First font with the most letters of the text: Pillow's own if it has all."""
    own = _default_font(size)
    if text.isascii():
        return own
    others = (_system_font(name, size) for name in FONTS)
    fonts = [own, *(font for font in others if font is not None)]
    return max(fonts, key=lambda font: sum(_has(font, letter) for letter in set(text)))


@cache
def _system_font(name: str, size: int) -> ImageFont.FreeTypeFont | None:
    try:
        return ImageFont.truetype(name, size * SCALE)
    except OSError:
        return None


@cache
def _default_font(size: int) -> ImageFont.FreeTypeFont:
    font = ImageFont.load_default(size * SCALE)
    assert isinstance(font, ImageFont.FreeTypeFont)  # always true where a size is given
    return font


@lru_cache(10_000)
def _has(font: ImageFont.FreeTypeFont, letter: str) -> bool:
    return bytes(font.getmask(letter)) != bytes(font.getmask(NO_LETTER))


def _drawable(text: str) -> str:
    """Text with letters escaped that its font does not have."""
    font = _font(12, text)
    return "".join(
        c if c.isspace() or _has(font, c) else c.encode("unicode_escape").decode() for c in text
    )


def _text(
    sheet: Image.Image,
    place: tuple[int, int],
    text: str,
    size: int,
    colour: str,
    *,
    anchor: str = "la",
) -> None:
    if text:
        font = _font(size, text)
        ImageDraw.Draw(sheet).text(place, text, fill=colour, font=font, anchor=anchor)


def _clean(text: str) -> str:
    """Text that can be drawn: no control characters, no lone surrogates, no missing letters."""
    whole = unicodedata.normalize("NFC", text.encode(errors="replace").decode())
    shown = ("".join(c if c.isprintable() else " " for c in line) for line in whole.splitlines())
    return "\n".join(_drawable(line) for line in shown)


def _shorten(text: str, font: ImageFont.FreeTypeFont, room: int) -> str:
    """Text that fits, shortened in the middle: names differ at the ends."""
    text = text[:1000]
    if font.getlength(text) <= room:
        return text
    # The smallest number of letters that is too many, minus one.
    kept = bisect.bisect_left(
        range(len(text)), True, key=lambda kept: font.getlength(_ends(text, kept)) > room
    )
    return _ends(text, max(0, kept - 1))


def _ends(text: str, kept: int) -> str:
    return f"{text[: (kept + 1) // 2]}…{text[len(text) - kept // 2 :]}"


def _wrap(text: str, font: ImageFont.FreeTypeFont, room: int, *, lines: int) -> list[str]:
    """Lines of whole words; words that do not fit on the last line are dropped."""
    wrapped = [""]
    for word in text.split():
        longer = f"{wrapped[-1]} {word}".strip()
        if font.getlength(longer) <= room:
            wrapped[-1] = longer
        else:
            wrapped.append(_shorten(word, font, room))
    return wrapped[:lines]
