"""Recipes for CIFAR-10 from scratch with little compute: docs/experiments.md has what they gave.

All 50,000 training images are used; every choice was made on 5,000 of them held out before.
"""

from dataclasses import replace

from vitlab.recipes.small import default
from vitlab.train.config import TrainConfig


def cifar10_30min() -> TrainConfig:
    """Half an hour of two cores.

    `vitlab train cifar10_30min --data cifar10 --out runs/a`
    """
    return replace(default(), hold_out=0.0, budget=7.4)
