"""Table of figures by name: requirements and functions."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from vitlab.errors import FileError, UnknownName
from vitlab.io.files import write_files
from vitlab.report.figures import attention, features, weights
from vitlab.report.figures.figure import Figure, Seen, Watch
from vitlab.report.plots import rendered, styled


@dataclass(frozen=True, kw_only=True)
class Maker:
    """Functions that make one figure."""

    build: Callable[[Seen], Figure]
    draw: Callable[[Figure], Any]
    check: Callable[[nn.Module], object] = lambda model: None
    """Raise `Lacks` for a model that does not support the figure, before any image is read."""
    needs: frozenset[str] = frozenset()
    """Required statistics over images: fields of `Gatherer`."""


FIGURES = {
    "filters": Maker(build=weights.build_filters, draw=weights.draw_filters),
    "positions": Maker(
        build=weights.build_positions,
        draw=weights.draw_positions,
        check=weights.check_positions,
    ),
    "attention-distance": Maker(
        build=attention.build_distance,
        draw=attention.draw_distance,
        check=attention.check_distance,
        needs=frozenset({"attention"}),
    ),
    "attention-entropy": Maker(
        build=attention.build_entropy,
        draw=attention.draw_entropy,
        check=attention.check_entropy,
        needs=frozenset({"attention"}),
    ),
    "feature-pca": Maker(
        build=features.build_pca,
        draw=features.draw_pca,
        check=features.check_pca,
        needs=frozenset({"pictures"}),
    ),
    "tsne": Maker(build=features.build_tsne, draw=features.draw_tsne, needs=frozenset({"pooled"})),
    "cka": Maker(
        build=features.build_cka,
        draw=features.draw_cka,
        check=features.check_cka,
        needs=frozenset({"means"}),
    ),
}


def chosen(only: Iterable[str] | None) -> list[str]:
    """Requested figures, in the order of the table; None: all."""
    if only is None:
        return list(FIGURES)
    wanted = set(only)
    for name in sorted(wanted):
        if name not in FIGURES:
            raise UnknownName("figure", name, FIGURES)
    return [name for name in FIGURES if name in wanted]


# Figures as files: all are made before the first is written.

KINDS = ("png", "svg")


def check_folder(folder: Path) -> None:
    """Raise for a path that is not a folder and cannot become one, before anything is computed."""
    if folder.exists() and not folder.is_dir():
        raise FileError(f"{folder}: a file; valid: a folder, new or not")


def write_figures(
    figures: Mapping[str, Figure], model: str, folder: Path, watch: Watch | None = None
) -> tuple[Path, ...]:
    """Write NAME.png, NAME.svg and NAME.json of each; existing files are replaced."""
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
