"""Checked values of config files: an invalid one raises with its name and the valid choices."""

from collections.abc import Iterable
from typing import Any, TypeVar

from vitlab.errors import WeightsError

Value = TypeVar("Value")


def integer(name: str, value: Any) -> int:
    """Check an integer that is not negative."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 31:
        raise WeightsError(f"{name} {value!r}; valid: a whole number, at least 0")
    return value


def fraction(name: str, value: Any) -> float:
    """Check a finite number that is not negative."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e9:
        raise WeightsError(f"{name} {value!r}; valid: a number, at least 0")
    return float(value)


def flag(name: str, value: Any) -> bool:
    """Check a boolean."""
    if not isinstance(value, bool):
        raise WeightsError(f"{name} {value!r}; valid: true, false")
    return value


def size(name: str, value: Any) -> int | tuple[int, int]:
    """Check a size: one number for a square, or height and width."""
    if isinstance(value, list | tuple) and len(value) == 2:
        height, width = (integer(name, side) for side in value)
        return height if height == width else (height, width)
    if isinstance(value, list | tuple | dict):
        raise WeightsError(f"{name} {value!r}; valid: a whole number, or [height, width]")
    return integer(name, value)


def one_of(name: str, value: Any, valid: Iterable[Value]) -> Value:
    """Check that the value is one of these, also in type: 0 is not False."""
    for choice in valid:
        if type(choice) is type(value) and choice == value:
            return choice
    shown = ", ".join(repr(choice) for choice in valid)
    raise WeightsError(f"{name} {value!r} is not supported; valid: {shown}")
