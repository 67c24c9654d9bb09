"""The encoder's parts: where its norms are, its shape, and who looks at whom."""

from typing import Any

from vitlab.experiments.spec import Arm, Axis, Experiment
from vitlab.experiments.studies.tokens import SMALL_VIT

_ADAMW: dict[str, Any] = {
    "optimizer.name": "adamw",
    "optimizer.lr": 1e-3,
    "optimizer.weight_decay": 0.05,
}
_DEPTHS = (12, 6, 3)

NORM_PLACEMENT = Experiment(
    name="norm-placement",
    title="LayerNorm before or behind",
    question="Does a ViT need its LayerNorm before attention and MLP, and does depth decide it?",
    paper=(
        "The paper puts LayerNorm before each part (section 3.1), unlike the Transformer of 2017, "
        "and does not compare. arXiv:2002.04745 finds that behind it gradients of the last layers "
        "are large at the start, so that training needs a warm-up."
    ),
    changes={**SMALL_VIT, **_ADAMW},
    minutes=4,
    matched="steps",
    probes=("gradients",),
    axis=Axis(title="encoder blocks"),
    arms=(
        *(
            Arm(
                name=f"{norm}-{depth}",
                title=f"{where}, {depth} blocks",
                changes={"model.norm": norm, "model.depth": depth},
                series=where,
                x=depth,
                against=() if norm == "pre" else (f"pre-{depth}",),
            )
            for norm, where in (("pre", "before"), ("post", "behind"))
            for depth in _DEPTHS
        ),
        *(
            Arm(
                name=f"{norm}-{_DEPTHS[0]}-cold",
                title=f"{where}, {_DEPTHS[0]} blocks, no warm-up",
                changes={
                    "model.norm": norm,
                    "model.depth": _DEPTHS[0],
                    "schedule.warmup": 0.0,
                },
                against=(f"{norm}-{_DEPTHS[0]}",),
            )
            for norm, where in (("pre", "before"), ("post", "behind"))
        ),
    ),
)


def _shape(name: str, title: str, **changes: int) -> Arm:
    fields = {f"model.{field}": value for field, value in changes.items()}
    return Arm(name=name, title=title, changes=fields, against=("base",))


SHAPE = Experiment(
    name="shape",
    title="Shape at equal cost",
    question="For the same compute, should a ViT be deeper, wider, finer, or have a wider MLP?",
    paper=(
        "Appendix D.2: depth brings most, clearly up to 64 blocks, with diminishing returns after "
        "16; width least; smaller patches help without a parameter more."
    ),
    changes=SMALL_VIT,
    minutes=4,
    matched="compute",
    arms=(
        Arm(name="base", title="4 blocks, width 96, MLP 384, patch 4"),
        _shape("deeper", "8 blocks", depth=8),
        _shape("shallower", "2 blocks", depth=2),
        _shape("wider", "width 128", width=128, heads=4),
        _shape("narrower", "width 64", width=64, heads=2),
        _shape("mlp-wider", "MLP 768", mlp_width=768),
        _shape("mlp-narrower", "MLP 192", mlp_width=192),
        _shape("finer", "patch 2", patch_size=2),
        _shape("coarser", "patch 8", patch_size=8),
    ),
)

_KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "full": ("full", {"model.attention": "full"}),
    "lsa": ("LSA", {"model.attention": "lsa"}),
    "sliding": ("sliding", {"model.attention": "sliding", "model.window_size": 3}),
    "axial": ("axial", {"model.attention": "axial"}),
    "sparse": ("sparse", {"model.attention": "sparse", "model.window_size": 4}),
}
_PATCHES = (4, 2, 8)
"""The first is what the minutes are for; all others take as many steps."""
_SIDE = 32


def _tokens(patch: int) -> int:
    return 1 + (_SIDE // patch) ** 2


ATTENTION_KIND = Experiment(
    name="attention-kind",
    title="Kinds of attention",
    question="Does a token need to look at all others, and what does it save to look at fewer?",
    paper=(
        "Appendix D.6: axial attention beats ViT-B with more compute, and was slow as implemented. "
        "The paper names local and sparse attention as ways to more tokens (section 2)."
    ),
    changes={**SMALL_VIT, "model.image_size": _SIDE},
    minutes=2,
    matched="steps",
    probes=("cost",),
    axis=Axis(title="tokens", log=True),
    arms=tuple(
        Arm(
            name=f"{name}-{_tokens(patch)}",
            title=f"{title}, {_tokens(patch)} tokens",
            changes={**changes, "model.patch_size": patch},
            series=title,
            x=_tokens(patch),
            against=() if name == "full" else (f"full-{_tokens(patch)}",),
        )
        for name, (title, changes) in _KINDS.items()
        for patch in _PATCHES
    ),
)
