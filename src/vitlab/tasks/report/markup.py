"""HTML and SVG as strings in which every text is escaped, unless it is markup already."""

from collections.abc import Iterable
from html import escape

from vitlab.visible_text import visible

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
    """The parts one after the other; None is nothing."""
    return Html(
        "".join(
            part if isinstance(part, Html) else _text(part) for part in parts if part is not None
        )
    )


def _value(value: str | float) -> str:
    if isinstance(value, str):
        return _text(value)
    return f"{value:.2f}".rstrip("0").rstrip(".") or "0"


def _text(text: str) -> str:
    return escape(visible(text, keep="\n\t"))
