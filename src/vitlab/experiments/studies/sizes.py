"""Images of another size than those that were learnt from."""

from typing import Any

from vitlab.experiments.spec import Arm, Experiment
from vitlab.experiments.studies.tokens import SMALL_VIT

_LEARNT = 24
_OTHERS = (16, 32, 40)
_TUNED = (32, 40)
_TUNING: dict[str, Any] = {
    "patience": 0,
    "augment.random_resized_crop": (0.3, 1.0),
    "augment.shift": 0,
    "augment.policy": "randaugment",
    "augment.mixup": 0.2,
}
"""Augmentation is that of fine-tuning larger images: the kept results were learnt with it."""
_PART = 0.25


def _judged(size: int, *, fresh: bool) -> Arm:
    base = f"judged-{size}"
    return Arm(
        name=f"{base}-fresh" if fresh else base,
        title=f"judged at {size}, positions {'fresh' if fresh else 'resized'}",
        how="test",
        start="learnt",
        image_size=size,
        positions="fresh" if fresh else "resized",
        against=(base,) if fresh else ("learnt",),
    )


def _tuned(size: int, *, fresh: bool) -> Arm:
    base = f"tuned-{size}"
    return Arm(
        name=f"{base}-fresh" if fresh else base,
        title=f"fine-tuned at {size}, positions {'fresh' if fresh else 'resized'}",
        how="tune",
        start="learnt",
        image_size=size,
        positions="fresh" if fresh else "resized",
        budget=_PART,
        changes=_TUNING,
        against=(base,) if fresh else (f"tuned-{_LEARNT}",),
    )


RESOLUTION = Experiment(
    name="resolution",
    title="Another resolution",
    question="Can a ViT be used at another image size, and does it matter that its positions are "
    "resized?",
    paper=(
        "Section 3.2: fine-tuning at a higher resolution helps, with the learned positions "
        "interpolated to the new grid; it is the only place, beside the patches, where the two "
        "dimensions of images are put in by hand."
    ),
    changes=SMALL_VIT,
    minutes=4,
    matched="steps",
    arms=(
        Arm(
            name="learnt",
            title=f"learnt and judged at {_LEARNT}",
            changes={"model.image_size": _LEARNT},
        ),
        *(_judged(size, fresh=fresh) for size in _OTHERS for fresh in (False, True)),
        Arm(
            name=f"tuned-{_LEARNT}",
            title=f"fine-tuned at {_LEARNT}, as before",
            how="tune",
            start="learnt",
            budget=_PART,
            changes=_TUNING,
            against=("learnt",),
        ),
        *(_tuned(size, fresh=fresh) for size in _TUNED for fresh in (False, True)),
        Arm(
            name="scratch-32",
            title="learnt at 32 alone, with the steps of fine-tuning",
            how="tune",
            start="learnt",
            weights="fresh",
            new_head=True,
            image_size=32,
            budget=_PART,
            changes={**_TUNING, "optimizer.layer_decay": 1.0, "head_first": 0.0},
            against=("tuned-32",),
        ),
    ),
)
