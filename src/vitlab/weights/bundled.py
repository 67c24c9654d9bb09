"""Models in the package: bundles in `vitlab/bundled`, each in its folder MODEL.DATA.

Where a model is expected, the full name or DATA alone refers to it. A bare word is looked up as
such a name first; `./DATA` or a `Path` is a path on disk.
"""

import os
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "bundled"
CONFIG = "config.json"
"""Written last: the file that makes a folder a bundle."""


def bundled_models() -> dict[str, Path]:
    """Folder of every model inside the package, by its full name."""
    if not FOLDER.is_dir():
        return {}
    return {folder.name: folder for folder in sorted(FOLDER.iterdir()) if _is_whole(folder)}


def short_name(name: str) -> str:
    """DATA of MODEL.DATA."""
    return name.partition(".")[2]


def bundled_names() -> tuple[str, ...]:
    """All names of models inside the package, the short ones first."""
    return (*map(short_name, bundled_models()), *bundled_models())


def bundled_name(model: str | os.PathLike[str]) -> str | None:
    """Full name of the model inside the package; None for any other word."""
    if not isinstance(model, str):
        return None
    return next((name for name in bundled_models() if model in (name, short_name(name))), None)


def bundled_folder(model: str | os.PathLike[str]) -> Path | None:
    """Folder of the model inside the package; None for any other word."""
    name = bundled_name(model)
    return None if name is None else FOLDER / name


def _is_whole(folder: Path) -> bool:
    return bool(short_name(folder.name)) and (folder / CONFIG).is_file()
