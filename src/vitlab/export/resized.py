"""A model for another image size, its position tables resized: no resize enters a graph."""

from typing import cast

import torch
from torch import Tensor, nn

from vitlab.errors import InputError
from vitlab.models.config import Size, pair
from vitlab.models.registry import create_model
from vitlab.models.vit import VisionTransformer
from vitlab.weights.adapt import adapt, adapted_config


def at_size(model: nn.Module, image_size: Size | None) -> nn.Module:
    """The model itself where it takes that size already, else a copy that does."""
    config = cast(VisionTransformer, model).config
    if image_size is None or pair(image_size) == pair(config.image_size):
        return model
    if not isinstance(model, VisionTransformer):
        height, width = pair(config.image_size)
        raise InputError(
            f"image_size {image_size} for a {type(model).__name__}, which is no Vision "
            f"Transformer; valid: its own, {height}x{width}"
        )
    method = config.position_resize
    target = adapted_config(config, {"image_size": image_size}, method)
    with torch.device("meta"):
        resized = create_model(target)
    state: dict[str, Tensor] = {}
    for name, tensor in model.state_dict().items():
        found = adapt(name, tensor, config, target, method)
        assert found is not None, name  # only a new head has nothing to start from
        state[name] = found
    resized.load_state_dict(state, assign=True)
    return resized.eval()
