"""HTML and SVG as strings in which every text is escaped, except markup."""

from collections.abc import Iterable
from html import escape

from vitlab.io.text import visible

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


def _value(value: str | float) -> str:
    if isinstance(value, str):
        return _text(value)
    return f"{value:.2f}".rstrip("0").rstrip(".") or "0"


def _text(text: str) -> str:
    return escape(visible(text, keep="\n\t"))


# Human-readable numbers.

UNITS = ("", " k", " M", " G", " T", " P", " E")


def short(number: float) -> str:
    """Three digits and a unit: `86.6 M`."""
    unit = 0
    while abs(number) >= 999.5 and unit < len(UNITS) - 1:
        number, unit = number / 1000, unit + 1
    return f"{number:.3g}{UNITS[unit]}"


def in_pflops(flops: float) -> str:
    """FLOPs of a training in PFLOPs, as usual in papers; small ones in a smaller unit."""
    return f"{flops / 1e15:.3g} PFLOPs" if flops >= 1e12 else f"{short(flops)}FLOPs"


def percent(part: float | None, digits: int = 1) -> str:
    """`83.4%`; a dash for an undefined value."""
    return "–" if part is None else f"{part:.{digits}%}"


def duration(seconds: float) -> str:
    """The two largest units: `1 h 12 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours:,} h {minutes} min" if minutes else f"{hours:,} h"
