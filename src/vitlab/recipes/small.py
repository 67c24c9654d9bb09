"""Recipes for small images on a laptop."""

from vitlab.data.augment_config import AugmentConfig
from vitlab.train.config import OptimizerConfig, ScheduleConfig, TrainConfig


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
