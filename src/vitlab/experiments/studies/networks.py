"""CNN, ViT and hybrid beside each other: by augmentation, data, compute and few shots."""

from typing import Any

from vitlab.experiments.spec import Arm, Axis, Experiment, Gain
from vitlab.experiments.studies.tokens import SMALL_VIT

_SHORT: dict[str, Any] = {"evaluations": 2, "keep": 1}
_TUTORIAL: dict[str, Any] = {"model": "cnn_tutorial"}
_RESNET: dict[str, Any] = {"model": "resnet18_cifar", "model.width": 16}
"""A quarter as wide as the usual one: about as much work for an image as the ViT."""
_HYBRID: dict[str, Any] = {
    **SMALL_VIT,
    "model": "vit_cifar_hybrid",
    "model.depth": 3,
    "model.conv_widths": [32],
}
_PLAIN: dict[str, Any] = {"augment.flip": "none", "augment.shift": 0}
_NETWORKS: dict[str, tuple[str, dict[str, Any]]] = {
    "vit": ("ViT", SMALL_VIT),
    "hybrid": ("hybrid", _HYBRID),
    "cnn": ("ResNet-18", _RESNET),
}
_AGAINST: dict[str, tuple[str, ...]] = {"vit": ("cnn",), "hybrid": ("cnn", "vit"), "cnn": ()}


def _tenth(name: str, title: str, changes: dict[str, Any], *, against: tuple[str, ...]) -> Arm:
    """Few enough images to be seen many times: what augmentation and dropout are for."""
    return Arm(name=name, title=title, changes=changes, share=0.1, against=against)


CNN_VS_VIT = Experiment(
    name="cnn-vs-vit",
    title="CNN against ViT",
    question="Why does a ViT lose against a CNN on small images: too few of them, no augmentation, "
    "or overfitting, which arms with a tenth of the images show?",
    paper=(
        "Section 4.3: on small data a ViT overfits more than a ResNet of the same cost, and is "
        "ahead of it from 90 million images on. Notes on small reproductions with CIFAR-10 guess "
        "at three reasons: overfitting, missing augmentation, and too little data."
    ),
    changes=_SHORT,
    minutes=4,
    matched="compute",
    probes=("fit",),
    gains=(
        Gain(of=("vit-tenth", "vit-plain"), beside=("resnet-tenth", "resnet-plain")),
        Gain(of=("vit", "vit-tenth"), beside=("resnet", "resnet-tenth")),
    ),
    arms=(
        Arm(name="vit", title="ViT", changes=SMALL_VIT),
        Arm(name="tutorial", title="Tutorial CNN", changes=_TUTORIAL, against=("vit",)),
        Arm(name="resnet", title="ResNet-18, width 16", changes=_RESNET, against=("vit",)),
        Arm(name="hybrid", title="Hybrid", changes=_HYBRID, against=("vit", "resnet")),
        _tenth("vit-tenth", "ViT, a tenth", SMALL_VIT, against=("vit",)),
        _tenth("resnet-tenth", "ResNet-18, a tenth", _RESNET, against=("resnet", "vit-tenth")),
        _tenth(
            "vit-plain",
            "ViT, a tenth, not augmented",
            {**SMALL_VIT, **_PLAIN},
            against=("vit-tenth",),
        ),
        _tenth(
            "resnet-plain",
            "ResNet-18, a tenth, not augmented",
            {**_RESNET, **_PLAIN},
            against=("resnet-tenth", "vit-plain"),
        ),
        _tenth(
            "vit-regularised",
            "ViT, a tenth, dropout and stochastic depth",
            {**SMALL_VIT, "model.dropout": 0.1, "model.drop_path": 0.1},
            against=("vit-tenth",),
        ),
    ),
)


def _by_share(*shares: float) -> tuple[Arm, ...]:
    """Each network with parts of the training images."""
    return tuple(
        Arm(
            name=f"{name}-{100 * share:g}",
            title=f"{title}, {100 * share:g} % of the images",
            changes=changes,
            series=title,
            x=100 * share,
            share=share,
            against=tuple(f"{other}-{100 * share:g}" for other in _AGAINST[name]),
        )
        for name, (title, changes) in _NETWORKS.items()
        for share in shares
    )


DATA_SIZE = Experiment(
    name="data-size",
    title="How much data",
    question="From how many training images on does a ViT catch up with a CNN?",
    paper=(
        "Figures 3 and 4: with little pre-training data ResNets are ahead; with more data ViTs "
        "overtake them, from 90 million images on. Hybrids are in figure 5 alone."
    ),
    changes=_SHORT,
    minutes=3,
    matched="steps",
    axis=Axis(title="training images, % of all", log=True),
    arms=_by_share(1.0, 0.3, 0.1, 0.02),
)

_WORDS = {1.0: "all", 0.5: "half", 0.25: "a quarter"}

COMPUTE = Experiment(
    name="compute",
    title="How much compute",
    question="Which network makes the most of the same training compute?",
    paper=(
        "Figure 5: ViTs reach what ResNets reach with two to four times less compute; hybrids are "
        "a little ahead of ViTs at small budgets, and the gap vanishes at larger ones."
    ),
    changes=_SHORT,
    minutes=4,
    matched="compute",
    axis=Axis(title="training compute in PFLOPs", log=True, of="compute"),
    arms=tuple(
        Arm(
            name=f"{name}-{part:g}",
            title=f"{title}, {_WORDS[part]} of the compute",
            changes=changes,
            series=title,
            budget=part,
            against=tuple(f"{other}-{part:g}" for other in _AGAINST[name]),
        )
        for name, (title, changes) in _NETWORKS.items()
        for part in _WORDS
    ),
)

FEW_SHOT = Experiment(
    name="few-shot",
    title="Few shots by frozen features",
    question="How good are features for classes that were never learnt, by the amount of "
    "pre-training data?",
    paper=(
        "Figure 4: linear 5-shot accuracy on ImageNet after pre-training on parts of JFT-300M: "
        "ResNets are ahead with the smallest part and level off, ViTs with the larger ones. Here "
        "half of the classes is learnt, and the other half is told apart by five images each."
    ),
    changes=_SHORT,
    minutes=3,
    matched="steps",
    measure="few-shot",
    axis=Axis(title="pre-training images, % of all", log=True),
    arms=_by_share(1.0, 0.2, 0.02),
)
