"""Recipes: names of functions that return a complete `TrainConfig`."""

from collections.abc import Callable

from vitlab.registry import RECIPES
from vitlab.train.config import TrainConfig

Recipe = Callable[[], TrainConfig]


def recipe(name: str) -> TrainConfig:
    """The configuration behind a recipe's name."""
    make: Recipe = RECIPES[name]
    return make()
