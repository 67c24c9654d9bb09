"""Models that are part of the package: bundles in `vitlab/bundled`, each in its folder MODEL.DATA.

Where a model is wanted, the whole name or DATA alone means it. A word in a string is such a name
first; `./DATA` or a `Path` is what lies on the disk.
"""

import os
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "bundled"
CONFIG = "config.json"
"""Written last: what makes a folder a bundle."""


def bundled_models() -> dict[str, Path]:
    """The folder of every model inside the package, by its whole name."""
    if not FOLDER.is_dir():
        return {}
    return {folder.name: folder for folder in sorted(FOLDER.iterdir()) if _is_whole(folder)}


def short_name(name: str) -> str:
    """DATA of MODEL.DATA."""
    return name.partition(".")[2]


def bundled_names() -> tuple[str, ...]:
    """Every word that means a model inside the package, the short ones first."""
    return (*map(short_name, bundled_models()), *bundled_models())


def bundled_name(model: str | os.PathLike[str]) -> str | None:
    """The whole name of the model inside the package that a word means; None for all else."""
    if not isinstance(model, str):
        return None
    return next((name for name in bundled_models() if model in (name, short_name(name))), None)


def bundled_folder(model: str | os.PathLike[str]) -> Path | None:
    """Where the model inside the package lies that a word means; None for all else."""
    name = bundled_name(model)
    return None if name is None else FOLDER / name


def _is_whole(folder: Path) -> bool:
    return bool(short_name(folder.name)) and (folder / CONFIG).is_file()
