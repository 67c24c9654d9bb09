"""HTML and SVG as strings in which every text is escaped, except markup; parts of every page."""

import base64
import io
from collections.abc import Iterable, Sequence
from html import escape

from PIL import Image

from vitlab import __version__
from vitlab.io.text import visible
from vitlab.report.language import LANGUAGES, say, spoken
from vitlab.report.style import STYLE

VOID = {"br", "img", "meta"}


class Html(str):
    """Markup; a plain string becomes text."""

    __slots__ = ()


Child = str | None
Attribute = str | float | None


def element(tag: str, *children: Child, **attributes: Attribute) -> Html:
    """`<tag …>children</tag>`; `class_` is written `class`, `stroke_width` is `stroke-width`."""
    opening = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{_value(value)}"'
        for name, value in attributes.items()
        if value is not None
    )
    if tag in VOID:
        return Html(f"<{tag}{opening}>")
    return Html(f"<{tag}{opening}>{join(children)}</{tag}>")


def join(parts: Iterable[Child]) -> Html:
    """Concatenated parts; None is skipped."""
    return Html(
        "".join(
            part if isinstance(part, Html) else _text(part) for part in parts if part is not None
        )
    )


def said(text: Child) -> Child:
    """Text in the language of the page; markup as it is."""
    return text if text is None or isinstance(text, Html) else say(text)


def _value(value: str | float) -> str:
    if isinstance(value, str):
        return _text(value)
    return f"{value:.2f}".rstrip("0").rstrip(".") or "0"


def _text(text: str) -> str:
    return escape(visible(text, keep="\n\t"))


# Parts of every page: the frame, sections, figures, tables and tiles.


def page(title: str, *content: Child, kind: str | None = None, note: str = "") -> str:
    """A whole self-contained page; `kind` is a class of the stylesheet, `note` ends the footer."""
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", title),
        element("style", Html(STYLE)),
    )
    footer = element("footer", say(f"Made by vitlab {__version__}."), say(note))
    body = element("body", element("main", *content, footer), class_=kind)
    return f"<!doctype html>\n{element('html', head, body, lang=LANGUAGES[spoken()])}\n"


def heading(over: str, title: str, below: str | None = None) -> Html:
    """Top of a page: its kind, its title, and a line below."""
    quiet = element("p", below, class_="quiet") if below else None
    return element("header", element("p", say(over), class_="over"), element("h1", title), quiet)


def section(title: str, *content: Child) -> Html:
    """A section with its heading."""
    return element("section", element("h2", say(title)), *content)


def figure(
    title: str, *content: Child, caption: str | None = None, kind: str | None = None
) -> Html:
    """A drawing with a heading and a caption."""
    below = None if caption is None else element("figcaption", say(caption))
    return element("figure", element("h3", say(title)), *content, below, class_=kind)


def tiles(values: Iterable[tuple[str, str]]) -> list[Html]:
    """A box for each name and value."""
    return [
        element("div", element("b", value), element("span", say(name)), class_="tile")
        for name, value in values
    ]


def key(name: str, *drawn: Child, kind: str | None = None, width: float = 18) -> Html:
    """Entry of a legend: a small drawing and its name."""
    swatch = element(
        "svg",
        *drawn,
        class_=kind,
        viewBox=f"0 0 {width:g} 12",
        width=width,
        height=12,
        aria_hidden="true",
    )
    return element("span", swatch, say(name), class_="key")


NUMBERS = slice(1, None)


def row(cells: Sequence[Child], *, numbers: slice = NUMBERS, kind: str | None = None) -> Html:
    """Row of a table; `numbers` are the columns aligned to the right."""
    aligned = range(len(cells))[numbers]
    return element(
        "tr",
        *(
            element("td", cell, class_="number" if i in aligned else None)
            for i, cell in enumerate(cells)
        ),
        class_=kind,
    )


def table(
    heads: Sequence[Child],
    rows: Iterable[Sequence[Child] | Html],
    *,
    numbers: slice = NUMBERS,
    kind: str = "list",
) -> Html:
    """Table with a head; a row is its cells, or the markup of a whole row."""
    aligned = range(len(heads))[numbers]
    head = element(
        "tr",
        *(
            element("th", said(name), class_="number" if i in aligned else None)
            for i, name in enumerate(heads)
        ),
    )
    body = (part if isinstance(part, Html) else row(part, numbers=numbers) for part in rows)
    return element("table", element("thead", head), element("tbody", *body), class_=kind)


def scrolling(content: Html) -> Html:
    """Content that scrolls sideways if it is wider than the page."""
    return element("div", content, class_="scroll")


def pairs(rows: Iterable[tuple[Child, str]], title: str | None = None) -> Html:
    """Table of names and values."""
    lines = (element("tr", element("th", said(name)), element("td", value)) for name, value in rows)
    head = None if title is None else element("h3", say(title))
    return element("div", head, element("table", *lines, class_="pairs"))


def folded(summary: str, content: Html) -> Html:
    """Content that a click opens."""
    return element("details", element("summary", say(summary)), content)


def png_url(image: Image.Image) -> str:
    """Data URL of a PNG."""
    file = io.BytesIO()
    image.save(file, format="png", optimize=True)
    return data_url("image/png", file.getvalue())


def data_url(kind: str, content: bytes) -> str:
    """Data URL of a file."""
    return f"data:{kind};base64,{base64.b64encode(content).decode('ascii')}"
