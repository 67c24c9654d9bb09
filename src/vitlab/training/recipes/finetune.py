"""Recipes for fine-tuning: one chosen by the data and the model, and the paper's."""

from dataclasses import dataclass, replace

from vitlab.data.augment.config import AugmentConfig
from vitlab.training.config import OptimizerConfig, ScheduleConfig, TrainConfig

FEW, MANY = 50, 1000
"""Images per class: 'few' below the first number, 'many' from the second."""
SMALL = 64
"""Pixels of a side up to which crops and policies for photographs leave little to see."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Situation:
    """Facts about data, model and device that the settings of a fine-tuning depend on."""

    images: int
    """For training, the held-out ones among them."""
    classes: int
    parameters: int
    side: int
    """Pixels of the shorter side of what the model sees."""
    accelerated: bool
    """True if the device is more than a CPU."""
    per_class_text: str | None = None
    """Fewest and most images of a class, in words; None where there are no classes."""

    @property
    def per_class(self) -> float:
        """Images of a class, on average."""
        return self.images / max(self.classes, 1)


def finetuning(situation: Situation) -> TrainConfig:
    """Settings for this amount of data and this model."""
    return TrainConfig(
        batch_size=_batch_size(situation),
        budget=_epochs(situation),
        hold_out=0.2 if situation.per_class < FEW else 0.1,
        augment=_augment(situation)[0],
        label_smoothing=0.1,
        optimizer=OptimizerConfig(lr=_rate(situation), weight_decay=0.05, layer_decay=0.75),
        schedule=ScheduleConfig(kind="cosine", warmup=0.1),
        head_first=0.1,
        ema=0.999,
        patience=3,
    )


def reasons(config: TrainConfig, situation: Situation) -> tuple[str, ...]:
    """Sentences on the chosen settings and the reasons, for the user."""
    augment, kind = _augment(situation)
    each = "" if situation.per_class_text is None else f", {situation.per_class_text}"
    found = [
        f"{situation.images:,} images{each}: "
        + (kind if config.augment == augment else "augmentation as it was set"),
        f"batches of {config.batch_size}; {_length(config, situation)}",
        _learning(config, situation),
    ]
    if config.frozen_blocks:
        found.append(f"frozen: the stem, and blocks 1 to {config.frozen_blocks} of the encoder")
    if config.head_first:
        found.append(
            f"the head learns alone for the first {config.head_first:.0%}, so that its "
            f"first gradients do not wash away what the other weights know"
        )
    if config.hold_out:
        stop = "when to stop and " if config.patience else ""
        found.append(f"{config.hold_out:.0%} held out decides {stop}which weights are kept")
    return tuple(found)


def paper() -> TrainConfig:
    """Fine-tuning as in arXiv:2010.11929, appendix B.1.1: SGD from a zero head.

    `vitlab finetune --paper --from B_16.npz --data cifar10 --out runs/paper --steps 500`
    """
    return TrainConfig(
        batch_size=512,
        accumulate=16,
        budget=500,
        budget_in="steps",
        augment=AugmentConfig(random_resized_crop=(0.05, 1.0), flip="random"),
        label_smoothing=0.0,
        optimizer=OptimizerConfig(
            name="sgd", lr=0.03, weight_decay=0.0, momentum=0.9, clip_norm=1.0
        ),
        schedule=ScheduleConfig(kind="cosine", warmup=0.05),
    )


def linear_probe(config: TrainConfig) -> TrainConfig:
    """Train the head alone, with a higher learning rate."""
    return replace(
        config,
        learns="head",
        head_first=0.0,
        optimizer=replace(config.optimizer, lr=5e-3, layer_decay=1.0, weight_decay=0.0),
    )


def with_lora(config: TrainConfig, rank: int) -> TrainConfig:
    """Train low-rank updates, with a higher learning rate."""
    return replace(
        config,
        learns="lora",
        lora_rank=rank,
        optimizer=replace(config.optimizer, lr=2e-3, layer_decay=1.0),
    )


def _length(config: TrainConfig, situation: Situation) -> str:
    """Sentence on the length of a run."""
    if config.budget_in == "minutes":
        return f"as many updates as {config.budget:g} minutes allow"
    if config.budget_in == "steps":
        return f"{config.budget:,.0f} updates"
    seen = config.budget * situation.images * (1 - config.hold_out) * config.augment.repeats
    return f"{config.budget:g} epochs, about {max(seen / config.batch_size, 1):,.0f} updates"


def _learning(config: TrainConfig, situation: Situation) -> str:
    """Sentence on the trained parameters and their learning rates."""
    if config.learns == "head":
        return "the head alone learns"
    if config.learns == "lora":
        return f"updates of rank {config.lora_rank} and the head learn"
    rates = config.optimizer
    below = f", {rates.layer_decay:g} times that for each layer below"
    return (
        f"{situation.parameters / 1e6:.3g} M parameters: learning rate {rates.lr:g} for the head"
        f"{below if rates.layer_decay != 1 else ' and everything else'}"
    )


def _epochs(situation: Situation) -> int:
    return round(min(40, max(3, 40_000 / situation.images)))


def _batch_size(situation: Situation) -> int:
    for limit, size in ((500, 16), (5_000, 32), (50_000, 64)):
        if situation.images < limit:
            return size
    return 512 if situation.accelerated else 128


def _rate(situation: Situation) -> float:
    for limit, lr in ((30e6, 5e-4), (150e6, 3e-4)):
        if situation.parameters < limit:
            return lr
    return 1e-4


def _augment(situation: Situation) -> tuple[AugmentConfig, str]:
    if situation.side <= SMALL:
        shift = situation.side // 8
        return (
            AugmentConfig(shift=shift, flip="random"),
            f"flips, and shifts by up to {shift} pixels, since images are small",
        )
    if situation.per_class < FEW:
        return (
            AugmentConfig(random_resized_crop=(0.6, 1.0), flip="random", color_jitter=0.2),
            "gentle crops, flips and colours",
        )
    if situation.per_class < MANY:
        return (
            AugmentConfig(random_resized_crop=(0.4, 1.0), flip="random", policy="trivial"),
            "crops, flips and TrivialAugment",
        )
    return (
        AugmentConfig(
            random_resized_crop=(0.3, 1.0), flip="random", policy="randaugment", mixup=0.2
        ),
        "crops, flips, RandAugment and mixup",
    )
