"""Numbers as text for people: units, percentages, durations, ticks of axes."""

import math

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


def write_number(value: float) -> str:
    """Number of a tick, as short as possible."""
    if value and abs(value) < 1e-3:
        return f"{value:.3g}".replace("e-0", "e-")
    return f"{value:,.6g}" if abs(value) < 1e4 else f"{value:,.0f}"


def write_percent(value: float) -> str:
    """Percentage of a tick."""
    return f"{100 * value:.4g}%"


def number(value: float) -> str:
    """Four decimals, with a typographic minus; tiny numbers by their power of ten."""
    if not math.isfinite(value):
        return "−∞"
    text = f"{value:.1e}" if 0 < abs(value) < 5e-5 else f"{value:.4f}"
    return text.replace("-", "−")


def ordinal(number: int) -> str:
    """`second`, `third`, `4th`."""
    return {2: "second", 3: "third"}.get(number, f"{number}th")


def counted(number: int, what: str) -> str:
    """`1 image`, `128 images`."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"
