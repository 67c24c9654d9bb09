"""Numbers as people read them."""

UNITS = ("", " k", " M", " G", " T", " P", " E")


def short(number: float) -> str:
    """Three digits and a unit: `86.6 M`."""
    unit = 0
    while abs(number) >= 999.5 and unit < len(UNITS) - 1:
        number, unit = number / 1000, unit + 1
    return f"{number:.3g}{UNITS[unit]}"


def in_pflops(flops: float) -> str:
    """FLOPs of a training in PFLOPs, in which the field compares; much less in a smaller unit."""
    return f"{flops / 1e15:.3g} PFLOPs" if flops >= 1e12 else f"{short(flops)}FLOPs"


def percent(part: float | None, digits: int = 1) -> str:
    """`83.4%`; a dash for what is not defined."""
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
