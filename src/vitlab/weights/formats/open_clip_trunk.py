"""OpenCLIP models whose image tower is one of timm's: SigLIP, EVA-02-CLIP, Perception Encoders.

A linear layer that OpenCLIP puts behind the tower is a projection; the last layer of the tower
itself, which has a bias, is its head.
"""

import re
from collections.abc import Collection
from dataclasses import replace
from typing import Any

from vitlab.models.config import ViTConfig
from vitlab.weights.formats import timm
from vitlab.weights.formats.rules import Dialect, Inferred, Layout, Rule, StoredShapes, same

IMAGES = "visual."
PREFIX = "visual.trunk."
PROJECTION = "visual.head.proj.weight"


def recognise(names: Collection[str]) -> bool:
    return any(re.match(r"visual\.trunk\.blocks\.\d+\.", name) for name in names)


def infer(shapes: StoredShapes, hints: dict[str, Any]) -> Inferred:
    """Config as far as timm's tensors show it."""
    inside = {n.removeprefix(PREFIX): s for n, s in shapes.items() if n.startswith(PREFIX)}
    found = timm.infer(StoredShapes(inside), hints)
    if PROJECTION in shapes:
        size = shapes.sized(PROJECTION, 2)[0]
        found.decided |= {"head": "projection", "representation_size": size}
    text = tuple(name for name in shapes if not name.startswith(IMAGES))
    return replace(
        found,
        values={field: PREFIX + name for field, name in found.values.items()},
        ignored=(*text, *(PREFIX + name for name in found.ignored)),
    )


def rules(config: ViTConfig, dialect: Dialect) -> list[Rule]:
    """Every tensor of the config; the projection, if there is one, is OpenCLIP's own."""
    found = [
        replace(rule, theirs=tuple(PREFIX + name for name in rule.theirs))
        for rule in timm.rules(config, dialect)
    ]
    if config.head == "projection":
        found.append(same("pre_logits.weight", PROJECTION))
    return found


def check(config: ViTConfig) -> None:
    """Raise for anything that timm's towers have no arguments for."""
    projected = config.head == "projection"
    timm.check(replace(config, head="linear", representation_size=None) if projected else config)


LAYOUT = Layout(name="open-clip-timm", recognise=recognise, infer=infer, rules=rules, check=check)
