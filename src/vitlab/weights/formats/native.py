"""The native format: the names of `VisionTransformer.state_dict()` beside the config."""

from collections.abc import Collection
from typing import Any

import torch

from vitlab.errors import WeightsError
from vitlab.models.config import ViTConfig
from vitlab.models.vit import VisionTransformer
from vitlab.nn.init import NoInitialisation
from vitlab.weights.formats.rules import Dialect, Inferred, Layout, Rule, Shape, StoredShapes, same

REQUIRED = ("width", "depth", "heads", "mlp_width", "patch_size")


def recognise(names: Collection[str]) -> bool:
    return any(name.startswith("encoder.blocks.") for name in names)


def infer(shapes: StoredShapes, hints: dict[str, Any]) -> Inferred:
    """Nothing is inferred: without our config, keywords must describe the model."""
    missing = [name for name in REQUIRED if name not in hints]
    if missing:
        raise WeightsError(
            f"vitlab's tensors without vitlab's config; save with save_weights, keep config.json "
            f"beside the file, or describe the model ({', '.join(missing)}=...)"
        )
    return Inferred(decided=dict(hints))


def rules(config: ViTConfig, dialect: Dialect) -> list[Rule]:
    """Every tensor under its own name."""
    return [same(name, name) for name in our_shapes(config)]


def our_shapes(config: ViTConfig) -> dict[str, Shape]:
    """Name and shape of every tensor of a model, which is never allocated."""
    return {name: tuple(tensor.shape) for name, tensor in meta_model(config).state_dict().items()}


def meta_model(config: ViTConfig) -> VisionTransformer:
    """Model without memory for its tensors."""
    with torch.device("meta"), NoInitialisation():
        return VisionTransformer(config)


def check(config: ViTConfig) -> None:
    """Accept every config."""


LAYOUT = Layout(name="vitlab", recognise=recognise, infer=infer, rules=rules, check=check)
