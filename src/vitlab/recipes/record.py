"""Recipes for CIFAR-10 from scratch with little compute: docs/experiments.md has what they gave.

All 50,000 training images are used; every choice was made on 5,000 of them held out before.
"""

from dataclasses import replace

from vitlab.recipes.small import default
from vitlab.train.config import TrainConfig


def cifar10_30min() -> TrainConfig:
    """Half an hour of two cores: a whitened first layer, and smaller images first.

    `vitlab train cifar10_30min --data cifar10 --out runs/a`
    """
    return replace(
        default(),
        changes={"dynamic_size": True},
        hold_out=0.0,
        budget=10.5,
        whiten=5000,
        whiten_frozen=True,
        small_sizes=(16, 24),
        small_until=(0.3, 0.6),
    )


def cifar10_best() -> TrainConfig:
    """Three times the compute of half an hour, spent on a larger network and on more epochs.

    `vitlab train cifar10_best --data cifar10 --out runs/c`
    """
    base = cifar10_30min()
    return replace(
        base,
        changes={
            **base.changes,
            "width": 160,
            "depth": 7,
            "heads": 10,
            "mlp_width": 640,
            "conv_widths": (24, 64, 80, 128),
        },
        budget=18.0,
        augment=replace(base.augment, shift=4),
    )


def cifar10_pure() -> TrainConfig:
    """No convolution but the patch embedding: attention starts by looking at neighbours.

    `vitlab train cifar10_pure --data cifar10 --out runs/b`
    """
    return replace(
        cifar10_30min(),
        model="vit_cifar_pure",
        changes={
            "width": 128,
            "depth": 8,
            "heads": 8,
            "mlp_width": 512,
            "mlp_activation": "relu2",
            "norm_bias": False,
            "qk_norm": True,
            "pool_after": 3,
            "position": "relative_bias",
            "relative_local": 1.5,
            "branch_norm": 0.2,
            "class_token": False,
            "pool": "mean",
            "dynamic_size": True,
        },
        budget=16.0,
        whiten_frozen=False,
    )
