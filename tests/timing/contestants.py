"""Contestants whose speed is known, and some that are lame."""

import time
from collections.abc import Callable

from vitlab.errors import InputError


def sleeper(milliseconds: float) -> Callable[[], float]:
    """A contestant that only sleeps."""

    def nap() -> float:
        time.sleep(milliseconds / 1e3)
        return milliseconds

    return nap


def broken() -> Callable[[], float]:
    """A contestant that cannot start."""
    raise OSError("no weights here")


def fails_when_called() -> Callable[[], float]:
    """A contestant that starts and then dies."""

    def fail() -> float:
        raise OSError("out of breath")

    return fail


def mistaken() -> Callable[[], float]:
    """A contestant that the user described wrongly."""
    raise InputError("no such model")
