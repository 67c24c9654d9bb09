"""Build a model from a name or a configuration."""

from typing import Any

from torch import nn

from vitlab.config import from_dict, to_dict
from vitlab.models.cnn import ResNet, TutorialCNN
from vitlab.models.config import ViTConfig
from vitlab.models.variants import ModelConfig, ResNetConfig, TutorialCNNConfig, variant
from vitlab.models.vit import VisionTransformer

MODELS: dict[type[ModelConfig], type[nn.Module]] = {
    ViTConfig: VisionTransformer,
    ResNetConfig: ResNet,
    TutorialCNNConfig: TutorialCNN,
}


def configure(config: str | ModelConfig, **changes: Any) -> ModelConfig:
    """Configuration of a named model, with some fields changed."""
    base = variant(config) if isinstance(config, str) else config
    return from_dict(type(base), {**to_dict(base), **changes}) if changes else base


def create_model(config: str | ModelConfig, **changes: Any) -> nn.Module:
    """Build a model with freshly initialised weights."""
    config = configure(config, **changes)
    return MODELS[type(config)](config)
