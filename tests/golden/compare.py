"""Differences between two golden records, entry by entry."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

ABSENT = "(absent)"
WORDING = frozenset({"messages", "help", "text", "printed"})
"""Fields that hold prose, which may be reworded without a change of behaviour."""


@dataclass(frozen=True)
class Difference:
    """One value that differs, at its path in the record."""

    entry: str
    path: str
    before: Any
    after: Any
    wording: bool

    def __str__(self) -> str:
        return f"{self.path}: {_short(self.before)} -> {_short(self.after)}"


def differences(before: dict[str, Any], after: dict[str, Any]) -> list[Difference]:
    """All values in which the entries of two records differ."""
    names = [*before, *(name for name in after if name not in before)]
    return [
        Difference(name, ".".join(path), old, new, any(part in WORDING for part in path))
        for name in names
        for path, old, new in _walk((), before.get(name, ABSENT), after.get(name, ABSENT))
    ]


def _walk(path: tuple[str, ...], old: Any, new: Any) -> Iterator[tuple[tuple[str, ...], Any, Any]]:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in [*old, *(key for key in new if key not in old)]:
            yield from _walk((*path, key), old.get(key, ABSENT), new.get(key, ABSENT))
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for number, (one, other) in enumerate(zip(old, new, strict=True)):
            yield from _walk((*path, str(number)), one, other)
    elif not _same(old, new):
        yield path, old, new


def _same(old: Any, new: Any) -> bool:
    """Equal to the last bit and in type; NaN equals NaN."""
    return type(old) is type(new) and repr(old) == repr(new)


def _short(value: Any, limit: int = 160) -> str:
    text = repr(value)
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
