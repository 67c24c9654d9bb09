"""Recipes for small images on a laptop."""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from vitlab.data.augment.config import AugmentConfig
from vitlab.errors import UnknownName
from vitlab.registry import RECIPES
from vitlab.training.config import (
    MaeConfig,
    MaskedPatchConfig,
    OptimizerConfig,
    ScheduleConfig,
    TrainConfig,
)


def default() -> TrainConfig:
    """A small ViT, trained the way that works on small data.

    Muon for every matrix, flips and shifts, linear decay to zero.
    `vitlab train --data cifar10 --out runs/a --minutes 20`
    """
    return TrainConfig(
        model="vit_cifar",
        batch_size=100,
        budget=10,
        budget_in="epochs",
        augment=AugmentConfig(flip="alternate", shift=2),
        label_smoothing=0.1,
        optimizer=OptimizerConfig(
            name="muon",
            muon_for="all",
            lr=2e-3,
            muon_lr=0.03,
            betas=(0.9, 0.95),
            weight_decay=0.02,
        ),
        schedule=ScheduleConfig(kind="linear", warmup=0.15),
        precision="auto",
        evaluations=5,
    )


def seed() -> TrainConfig:
    """One block of width 768 with patches of 16 pixels, AdamW, nothing against small data.

    `vitlab train seed --data cifar10 --out runs/seed --minutes 20`
    """
    return TrainConfig(
        model="vit_seed",
        batch_size=128,
        budget=20,
        budget_in="epochs",
        label_smoothing=0.0,
        optimizer=OptimizerConfig(name="adamw", lr=3e-4, weight_decay=0.0),
        schedule=ScheduleConfig(kind="cosine", warmup=0.05),
    )


def demo() -> TrainConfig:
    """A smaller ViT on the embedded sample, in two minutes on any machine.

    `vitlab train demo --data sample --out runs/demo`
    """
    return TrainConfig(
        model="vit_cifar",
        changes={"width": 96, "heads": 3, "mlp_width": 384, "conv_widths": (24, 32, 48, 64)},
        batch_size=50,
        budget=2,
        budget_in="minutes",
        augment=AugmentConfig(flip="alternate", shift=3),
        optimizer=OptimizerConfig(name="muon", lr=2e-3, muon_lr=0.015, weight_decay=0.01),
        schedule=ScheduleConfig(kind="linear", warmup=0.1),
    )


# Recipes for CIFAR-10 from scratch with little compute: docs/experiments.md has what they gave.
#
# All 50,000 training images are used; every choice was made on 5,000 of them held out before.


def cifar10_30min() -> TrainConfig:
    """Half an hour of two cores: a whitened first layer, and smaller images first.

    `vitlab train cifar10_30min --data cifar10 --out runs/a`

    Measured: CIFAR-10 90.5 ± 0.3 % (three seeds) in 32 min of two cores, 39 of one with bfloat16.
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

    Measured: CIFAR-10 92.0 % (two seeds) in 77 min of one core with bfloat16.
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

    Measured: CIFAR-10 88.0 % (one seed) in 41 min of one core with bfloat16.
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


def cifar10_plain() -> TrainConfig:
    """The paper's architecture and nothing else, small enough for the package.

    A tenth of the images are held out, so that the run has a curve.
    `vitlab train cifar10_plain --data cifar10 --out runs/plain`

    Measured: CIFAR-10 81.7 % (one seed) in 10 min of one core with bfloat16.
    """
    base = cifar10_30min()
    return replace(
        base,
        model="vit_plain",
        hold_out=0.1,
        evaluations=10,
        budget=10.0,
        whiten_frozen=False,
        # Without norms of queries, keys and branches, Muon needs a lower rate.
        optimizer=replace(base.optimizer, muon_lr=0.01),
    )


# Recipes for learning without labels: a small pure ViT, on small images.

SHAPE: dict[str, Any] = {"width": 128, "depth": 6, "heads": 4, "mlp_width": 512}
"""Small enough for a laptop; patches of 4 pixels are those of `vit_cifar_pure`."""


def pretraining(objective: str | None = None, *, model: str | None = None) -> TrainConfig:
    """The recipe of an objective (None: `mae`); another `model` keeps the shape of its name."""
    if objective is not None and objective not in PRETRAIN_RECIPES:
        raise UnknownName("objective", objective, PRETRAIN_RECIPES)
    config = mae() if objective is None else PRETRAIN_RECIPES[objective]()
    return config if model is None else replace(config, model=model, changes={})


def masked_patch() -> TrainConfig:
    """Mean colours of corrupted patches, as in arXiv:2010.11929, appendix B.1.2.

    `vitlab pretrain --objective masked-patch --data cifar10 --out runs/p`
    """
    return replace(_base(), masked_patch=MaskedPatchConfig())


def mae() -> TrainConfig:
    """Pixels of left-out patches, as in arXiv:2111.06377.

    `vitlab pretrain --objective mae --data cifar10 --out runs/p`
    """
    return replace(_base(), mae=MaeConfig())


def _base() -> TrainConfig:
    """The default recipe, with crops and flips only, since colours are predicted."""
    return replace(
        default(),
        model="vit_cifar_pure",
        changes=dict(SHAPE),
        budget=20,
        augment=AugmentConfig(random_resized_crop=(0.4, 1.0), flip="random"),
        label_smoothing=0.0,
        judge_all=False,
    )


PRETRAIN_RECIPES: dict[str, Callable[[], TrainConfig]] = {"masked-patch": masked_patch, "mae": mae}


# Recipes: names of functions that return a complete `TrainConfig`.

Recipe = Callable[[], TrainConfig]
MEASURED = "Measured: "
"""Start of the paragraph of a docstring that states what a recipe gave."""


def described() -> Iterator[tuple[str, str, str | None]]:
    """Name, summary and measured result of each recipe, from its docstring; None: not measured."""
    for name in RECIPES:
        paragraphs = (inspect.getdoc(RECIPES[name]) or "").split("\n\n")
        measured = (text for text in paragraphs if text.startswith(MEASURED))
        result = next(measured, MEASURED).removeprefix(MEASURED)
        yield name, paragraphs[0], " ".join(result.split()) or None


def recipe(name: str) -> TrainConfig:
    """Settings of a named recipe."""
    make: Recipe = RECIPES[name]
    return make()
