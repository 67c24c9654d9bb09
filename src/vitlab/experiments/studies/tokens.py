"""What tokens know of their place, and which of them is read."""

from typing import Any

from vitlab.experiments.spec import Arm, Axis, Experiment

SMALL_VIT: dict[str, Any] = {
    "model": "vit_cifar_pure",
    "model.width": 96,
    "model.depth": 4,
    "model.heads": 3,
    "model.mlp_width": 384,
    "evaluations": 2,
    "keep": 1,
}
"""A plain ViT that learns something in minutes: patches of 4 pixels, four blocks of width 96."""


def _position(
    name: str, title: str, kind: str, at: str = "stem", against: tuple[str, ...] = ("none", "1d")
) -> Arm:
    changes = {"model.position": kind, "model.position_at": at}
    return Arm(name=name, title=title, changes=changes, against=against)


POSITION = Experiment(
    name="position",
    title="Position embeddings",
    question="Does a ViT need to be told where its patches are, and does the way matter?",
    paper=(
        "Table 8 (ViT-B/16, ImageNet, linear 5-shot): none 61.4 %; 1-D 64.2 %, 2-D 64.0 %, "
        "relative 64.0 %; added to every layer 64.0 %, one table shared by all layers 64.3 % "
        "(1-D). The gap is between none and any of them."
    ),
    changes=SMALL_VIT,
    minutes=4,
    matched="steps",
    arms=(
        _position("1d", "1-D", "learned1d", against=("none",)),
        _position("none", "no positions", "none", against=()),
        _position("2d", "2-D", "learned2d"),
        _position("relative", "relative", "relative"),
        _position("sincos", "sine and cosine", "sincos2d"),
        _position("rotary", "rotary", "rope"),
        _position("1d-every", "1-D, every layer", "learned1d", "every_layer"),
        _position("1d-shared", "1-D, shared by all layers", "learned1d", "shared_layers"),
        _position("2d-every", "2-D, every layer", "learned2d", "every_layer"),
        _position("2d-shared", "2-D, shared by all layers", "learned2d", "shared_layers"),
    ),
)

_RATES = (3e-4, 1e-3, 3e-3)
_POOLS: dict[str, tuple[str, dict[str, Any]]] = {
    "cls": ("class token", {"model.pool": "cls", "model.class_token": True}),
    "mean": ("mean of the patches", {"model.pool": "mean", "model.class_token": False}),
    "map": ("attention pooling", {"model.pool": "map", "model.class_token": False}),
}

CLASS_TOKEN = Experiment(
    name="class-token",
    title="Class token or pooling",
    question="Does reading a class token beat averaging the patches, or is it the learning rate?",
    paper=(
        "Appendix D.3: averaging the patches first performed very poorly. Neither the missing "
        "token nor the averaging was the reason, but the learning rate: each works at its own."
    ),
    changes={**SMALL_VIT, "optimizer.name": "adamw", "optimizer.weight_decay": 0.05},
    minutes=4,
    matched="steps",
    choose="class token",
    axis=Axis(title="learning rate", log=True),
    arms=tuple(
        Arm(
            name=f"{pool}-{rate:g}",
            title=f"{title}, rate {rate:g}",
            changes={**changes, "optimizer.lr": rate},
            against=() if pool == "cls" else (f"cls-{rate:g}",),
            series=title,
            x=rate,
        )
        for pool, (title, changes) in _POOLS.items()
        for rate in _RATES
    ),
)
