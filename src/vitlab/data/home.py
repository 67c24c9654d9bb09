"""Where datasets lie: the folder that VITLAB_DATA names, then the user's cache folder."""

import os
from pathlib import Path

from vitlab.errors import DataError

VARIABLE = "VITLAB_DATA"


def homes() -> tuple[Path, ...]:
    """The folders in which a dataset is looked for, in this order."""
    named = os.environ.get(VARIABLE)
    return (Path(named).expanduser().absolute(), user_cache()) if named else (user_cache(),)


def user_cache() -> Path:
    """Where data goes when nobody says where."""
    named = os.environ.get("XDG_CACHE_HOME")
    return (Path(named) if named else Path.home() / ".cache") / "vitlab" / "data"


def writable_home() -> Path:
    """The first of the homes that can be written to, made where it is missing."""
    for home in homes():
        try:
            home.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(home, os.W_OK | os.X_OK):
            return home
    tried = ", ".join(map(str, homes()))
    raise DataError(f"no folder for data can be written: {tried}; set {VARIABLE} to one that can")
