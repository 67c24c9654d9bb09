"""Figures as files: all are made before the first is written."""

import json
from collections.abc import Mapping
from pathlib import Path

from vitlab.errors import FileError
from vitlab.files import write_files
from vitlab.tasks.figures.figure import Figure, Watch
from vitlab.tasks.figures.style import rendered, styled
from vitlab.tasks.figures.table import FIGURES

KINDS = ("png", "svg")


def check_folder(folder: Path) -> None:
    """Refuse a place that is no folder and cannot become one, before anything is computed."""
    if folder.exists() and not folder.is_dir():
        raise FileError(f"{folder}: a file; valid: a folder, new or not")


def write_figures(
    figures: Mapping[str, Figure], model: str, folder: Path, watch: Watch | None = None
) -> tuple[Path, ...]:
    """NAME.png, NAME.svg and NAME.json of each; what had these names is replaced."""
    check_folder(folder)
    contents: dict[str, bytes] = {}
    for done, (name, figure) in enumerate(figures.items(), 1):
        with styled():
            drawn = FIGURES[name].draw(figure)
            contents |= {f"{name}.{kind}": rendered(drawn, kind) for kind in KINDS}
        about = {"figure": name, "model": model, "caption": figure.caption}
        contents[f"{name}.json"] = json.dumps(about | figure.data).encode() + b"\n"
        if watch is not None:
            watch("drawing", done, len(figures))
    return write_files(folder, contents)
