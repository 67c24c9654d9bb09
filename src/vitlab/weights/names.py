"""Resolve the name of a model: one inside the package, or a path on disk.

Names of published checkpoints are resolved by `table.named`.
"""

import os
import re
from pathlib import Path

from vitlab.errors import WeightsError, near
from vitlab.weights.bundle_files import find_bundle
from vitlab.weights.bundled import bundled_folder, bundled_names
from vitlab.weights.published import Checkpoint, checkpoints, named
from vitlab.weights.reading import SUFFIXES

WORD = re.compile(r"\w[\w.-]*")


def resolve(model: str | os.PathLike[str]) -> Checkpoint | Path:
    """The published checkpoint that a name stands for, or the path of a bundle or a weight file."""
    return named(model) or find_bundle(locate(model))


def locate(model: str | os.PathLike[str]) -> Path:
    """Path of a model; a bare word that is neither a name nor on disk raises."""
    inside = bundled_folder(model)
    if inside is not None:
        return inside
    path = Path(model)
    word = isinstance(model, str) and WORD.fullmatch(model) and path.suffix not in SUFFIXES
    if word and not path.exists():
        raise WeightsError(_unknown(os.fspath(model)))
    return path


def _unknown(word: str) -> str:
    inside = bundled_names()
    meant = near(word, (*inside, *checkpoints()))
    told = [f"unknown model {word!r}, and no such file or folder"]
    if meant:
        told.append(f"did you mean {', '.join(meant)}?")
    own = f"{', '.join(inside)} (inside the package), " if inside else ""
    told.append(f"valid: {own}a name of `vitlab weights list`, a run, a bundle or a weight file")
    return "; ".join(told)
