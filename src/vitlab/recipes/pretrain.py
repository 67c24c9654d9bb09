"""Recipes for learning without labels: a small pure ViT, on small images."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from vitlab.data.augment_config import AugmentConfig
from vitlab.errors import UnknownName
from vitlab.recipes.small import default
from vitlab.train.config import TrainConfig
from vitlab.train.pretrain_config import MaeConfig, MaskedPatchConfig

SHAPE: dict[str, Any] = {"width": 128, "depth": 6, "heads": 4, "mlp_width": 512}
"""Small enough for a laptop; patches of 4 pixels are those of `vit_cifar_pure`."""


def pretraining(objective: str | None = None, *, model: str | None = None) -> TrainConfig:
    """The recipe of an objective (None: `mae`); another `model` keeps the shape of its name."""
    if objective is not None and objective not in RECIPES:
        raise UnknownName("objective", objective, RECIPES)
    config = mae() if objective is None else RECIPES[objective]()
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
    """As labels are learnt by default, but crops and flips alone: colours are what is told."""
    return replace(
        default(),
        model="vit_cifar_pure",
        changes=dict(SHAPE),
        budget=20,
        augment=AugmentConfig(random_resized_crop=(0.4, 1.0), flip="random"),
        label_smoothing=0.0,
        judge_all=False,
    )


RECIPES: dict[str, Callable[[], TrainConfig]] = {"masked-patch": masked_patch, "mae": mae}
