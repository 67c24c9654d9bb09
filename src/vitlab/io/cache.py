"""Cache folders: the folder in VITLAB_<KIND>, then the user's cache folder."""

import os
from pathlib import Path

from vitlab.errors import DataError


def variable(kind: str) -> str:
    """Environment variable of the folder: VITLAB_DATA, VITLAB_WEIGHTS."""
    return f"VITLAB_{kind.upper()}"


def homes(kind: str) -> tuple[Path, ...]:
    """Folders that are searched for files of this kind, in order."""
    named, cache = os.environ.get(variable(kind)), user_cache(kind)
    return (Path(named).expanduser().absolute(), cache) if named else (cache,)


def user_cache(kind: str) -> Path:
    """Default cache folder of the user."""
    named = os.environ.get("XDG_CACHE_HOME")
    try:
        cache = Path(named) if named else Path.home() / ".cache"
    except RuntimeError:
        raise DataError(
            f"this user has no home folder; set {variable(kind)} or XDG_CACHE_HOME to a folder "
            f"for {kind}"
        ) from None
    return cache / "vitlab" / kind


def writable_home(kind: str) -> Path:
    """First of the homes that is writable, created if missing."""
    for home in homes(kind):
        try:
            home.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(home, os.W_OK | os.X_OK):
            return home
    tried = ", ".join(map(str, homes(kind)))
    raise DataError(
        f"no folder for {kind} can be written: {tried}; set {variable(kind)} to one that can"
    )
