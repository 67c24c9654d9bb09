"""What helps a plain ViT that has few images to learn from."""

from typing import Any

from vitlab.experiments.spec import Arm, Experiment
from vitlab.experiments.studies.tokens import SMALL_VIT

_REMEDIES: dict[str, tuple[str, dict[str, Any]]] = {
    "conv": (
        "conv tokenizer",
        {"model.stem": "conv", "model.conv_strides": [2, 2], "model.conv_widths": [32]},
    ),
    "spt": ("shifted patches (SPT)", {"model.stem": "shifted"}),
    "lsa": ("locality self-attention (LSA)", {"model.attention": "lsa"}),
    "augment": (
        "augmentation",
        {"augment.flip": "random", "augment.shift": 4, "augment.policy": "trivial"},
    ),
    "mixup": ("mixup and CutMix", {"augment.mixup": 0.8, "augment.cutmix": 1.0}),
    "depth": ("stochastic depth", {"model.drop_path": 0.1}),
}
_ALL: dict[str, Any] = {
    key: value
    for name, (_, changes) in _REMEDIES.items()
    if name != "spt"  # the place of the conv tokenizer
    for key, value in changes.items()
}

SMALL_DATA = Experiment(
    name="small-data",
    title="Remedies for small data",
    question="What does each remedy bring to a plain ViT that learns from few images?",
    paper=(
        "Not in the paper, which answers small data with pre-training. SPT and LSA "
        "(arXiv:2112.13492), the conv tokenizer of CCT (arXiv:2104.05704), mixup, CutMix and "
        "stochastic depth were proposed for it since or used by others."
    ),
    changes={
        **SMALL_VIT,
        "optimizer.name": "adamw",
        "optimizer.lr": 1e-3,
        "optimizer.weight_decay": 0.05,
        "augment.flip": "none",
        "augment.shift": 0,
    },
    minutes=4,
    matched="steps",
    arms=(
        Arm(name="plain", title="plain ViT", share=0.2),
        *(
            Arm(name=name, title=title, changes=changes, share=0.2, against=("plain",))
            for name, (title, changes) in _REMEDIES.items()
        ),
        Arm(name="all", title="all but SPT", changes=_ALL, share=0.2, against=("plain", "conv")),
    ),
)
