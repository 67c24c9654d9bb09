"""What learning without labels is worth where few labels are left to learn from."""

from typing import Any

from vitlab.experiments.spec import Arm, Experiment
from vitlab.experiments.studies.tokens import SMALL_VIT

_SHARE = 0.1
_LONGER = 10.0
"""Times the steps of a fine-tuning that each pre-training takes."""
_TUNING: dict[str, Any] = {
    "batch_size": 100,
    "optimizer.lr": 1e-3,
    "optimizer.layer_decay": 1.0,
    "head_first": 0.0,
    "patience": 0,
    "hold_out": 0.0,
    "ema": 0.0,
    "augment.random_resized_crop": (0.4, 1.0),
    "augment.shift": 0,
    "augment.policy": "trivial",
}
"""The same for all, one that starts from nothing included: only the weights at the start differ.
Batches are those of pre-training, so that as many steps are as many images.
Nothing is held out, since what was learnt with all labels would know those images.
Augmentation is that of fine-tuning larger images: the kept results were learnt with it."""


def _tuned(
    name: str,
    title: str,
    start: str,
    *,
    against: tuple[str, ...] = (),
    fresh: bool = False,
    budget: float = 1.0,
) -> Arm:
    return Arm(
        name=name,
        title=title,
        how="tune",
        start=start,
        weights="fresh" if fresh else "learnt",
        new_head=True,
        share=_SHARE,
        budget=budget,
        changes=_TUNING,
        against=against,
    )


PRETRAINING = Experiment(
    name="pretraining",
    title="Learning without labels first",
    question="With labels for a tenth of the images, how much does a ViT gain from learning "
    "without labels first, and is it as much as from all labels?",
    paper=(
        "Section 4.6 (ViT-B/16, ImageNet): masked patch prediction gives 79.9 %, 2 points more "
        "than training from scratch and 4 fewer than supervised pre-training. "
        "arXiv:2111.06377 reaches 83.6 % with a masked autoencoder."
    ),
    changes=SMALL_VIT,
    minutes=2,
    matched="steps",
    arms=(
        Arm(
            name="colours",
            title="masked patch prediction, no labels",
            how="pretrain",
            objective="masked-patch",
            budget=_LONGER,
            once=True,
        ),
        Arm(
            name="pixels",
            title="masked autoencoder, no labels",
            how="pretrain",
            objective="mae",
            budget=_LONGER,
            once=True,
        ),
        Arm(name="labels", title="supervised, all labels", budget=_LONGER, once=True),
        _tuned("scratch", "from scratch", "labels", fresh=True),
        _tuned(
            "masked-patch",
            "after masked patch prediction",
            "colours",
            against=("scratch", "supervised"),
        ),
        _tuned(
            "mae",
            "after a masked autoencoder",
            "pixels",
            against=("scratch", "masked-patch", "supervised"),
        ),
        _tuned("supervised", "after all labels", "labels", against=("scratch",)),
        _tuned(
            "scratch-long",
            "from scratch, 11 times the steps",
            "labels",
            against=("scratch", "masked-patch", "mae"),
            fresh=True,
            budget=1 + _LONGER,
        ),
    ),
)
