"""The ResNet of Google's hybrids: root, numbered stages (`block1`) and units (`unit1`)."""

from typing import Any

from vitlab.models.config import ViTConfig
from vitlab.weights.layout import numbered, sized
from vitlab.weights.rules import Rule, Shapes, moved, same

CONV = "h w i o -> o i h w"
GROUP_NORM = "1 1 1 c -> c"
"""Published files keep the axes over which the parameters are broadcast."""


def scale_and_bias(ours: str, theirs: str) -> list[Rule]:
    """The parameters of a normalisation."""
    return [same(f"{ours}.weight", f"{theirs}/scale"), same(f"{ours}.bias", f"{theirs}/bias")]


def resnet_stem(shapes: Shapes) -> dict[str, Any]:
    """The hybrid's ResNet, from its root kernel and its numbered units."""
    if not any(name.startswith(("conv_root/", "gn_root/", "block1/")) for name in shapes):
        return {"stem": "patch"}
    stages = numbered(shapes, r"block(\d+)/unit") - 1
    layers = tuple(numbered(shapes, rf"block{s}/unit(\d+)/") - 1 for s in range(1, stages + 1))
    root = sized(shapes, "conv_root/kernel", 4)
    return {
        "stem": "resnet",
        "resnet_layers": layers,
        "resnet_width": root[3],
        "channels": root[2],
    }


def resnet_rules(config: ViTConfig, group_norm: str | None) -> list[Rule]:
    """Every tensor of the ResNet; `group_norm` is the pattern of its norms' parameters."""
    found = _conv_and_norm("stem.resnet.root", ("conv", "norm"), "", ("conv_root", "gn_root"))
    for stage, units in enumerate(config.resnet_layers):
        for unit in range(units):
            ours = f"stem.resnet.stages.{stage}.{unit}"
            theirs = f"block{stage + 1}/unit{unit + 1}/"
            parts = ["1", "2", "3", *(["_proj"] if unit == 0 else [])]
            for part in parts:
                pair = (f"conv{part}", f"norm{part}")
                found += _conv_and_norm(ours, pair, theirs, (f"conv{part}", f"gn{part}"))
    if group_norm is None:
        return found
    return [rule if rule.pattern else Rule(rule.ours, rule.theirs, group_norm) for rule in found]


def _conv_and_norm(
    ours: str, our_parts: tuple[str, str], theirs: str, their_parts: tuple[str, str]
) -> list[Rule]:
    return [
        moved(f"{ours}.{our_parts[0]}.weight", f"{theirs}{their_parts[0]}/kernel", CONV),
        *scale_and_bias(f"{ours}.{our_parts[1]}", f"{theirs}{their_parts[1]}"),
    ]
