"""Completion in a shell: names of models, weights, data and recipes, besides files and folders."""

import glob
import os
from collections.abc import Iterable


def complete_model(incomplete: str) -> list[str]:
    """Names of bundled models and of weights, and paths."""
    from vitlab.weights.resolve import bundled_names, checkpoints

    return _matching(incomplete, (*bundled_names(), *checkpoints()))


def complete_architecture(incomplete: str) -> list[str]:
    """Names of models, with and without weights, and paths."""
    from vitlab.models.variants import variants

    return [*_starting(incomplete, variants()), *complete_model(incomplete)]


def complete_weights(incomplete: str) -> list[str]:
    """Names of published weights."""
    from vitlab.weights.resolve import checkpoints

    return _starting(incomplete, checkpoints())


def complete_data(incomplete: str) -> list[str]:
    """Names of datasets, and paths."""
    return _matching(incomplete, _datasets())


def complete_dataset(incomplete: str) -> list[str]:
    """Names of datasets."""
    return _starting(incomplete, _datasets())


def complete_recipe(incomplete: str) -> list[str]:
    """Names of recipes."""
    from vitlab.registry import RECIPES

    return _starting(incomplete, RECIPES)


def _datasets() -> Iterable[str]:
    from vitlab.registry import DATASETS

    return DATASETS


def _matching(incomplete: str, names: Iterable[str]) -> list[str]:
    return [*_starting(incomplete, names), *_paths(incomplete)]


def _starting(incomplete: str, names: Iterable[str]) -> list[str]:
    return [name for name in dict.fromkeys(names) if name.startswith(incomplete)]


def _paths(incomplete: str) -> list[str]:
    """Files and folders that begin so; a folder ends in a separator."""
    found = sorted(glob.glob(f"{glob.escape(incomplete)}*"))
    return [f"{path}{os.sep}" if os.path.isdir(path) else path for path in found]
