"""`create_model`: a name of the family, with fresh or given weights."""

import os
from dataclasses import fields
from typing import Any

from torch import nn

from vitlab.errors import WeightsError
from vitlab.models.config import ViTConfig
from vitlab.models.registry import configure
from vitlab.models.registry import create_model as create_fresh
from vitlab.models.variants import ModelConfig
from vitlab.weights.load import load_weights
from vitlab.weights.resolve import ADAPTED, FREE

ARCHITECTURE = (
    "width",
    "depth",
    "heads",
    "mlp_width",
    "patch_size",
    "stem",
    "resnet_layers",
    "class_token",
    "registers",
    "pool",
    "position",
    "norm",
)
"""What the weights must agree with the model about; the rest follows from them."""
OF_A_CONFIG = ADAPTED | FREE - {"position_resize"}
"""What a configuration decides; how positions are resized is as in the weights' own library."""


def create_model(
    config: str | ModelConfig | None = None,
    *,
    pretrained: str | os.PathLike[str] | None = None,
    **changes: Any,
) -> nn.Module:
    """A model by name or configuration, with fresh weights or those of a file or checkpoint.

    A name leaves the head to the weights, and a configuration decides it.
    """
    if config is None:
        if pretrained is None:
            raise WeightsError("create_model needs the name of a model, or pretrained weights")
        return load_weights(pretrained, **changes)
    if pretrained is None:
        return create_fresh(config, **changes)
    expected = configure(config, **changes)
    if not isinstance(expected, ViTConfig):
        raise WeightsError(f"pretrained weights are for Vision Transformers, not {config!r}")
    decided = {"image_size", "channels"} if isinstance(config, str) else OF_A_CONFIG
    asked = {name: getattr(expected, name) for name in sorted(decided)}
    model = load_weights(pretrained, **{**asked, **changes})
    for field in fields(expected):
        if field.name not in ARCHITECTURE:
            continue
        wanted, found = getattr(expected, field.name), getattr(model.config, field.name)
        if wanted != found:
            raise WeightsError(
                f"{pretrained}: {field.name} is {found!r}, but the model has {wanted!r}"
            )
    return model
