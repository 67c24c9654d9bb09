"""From the settings of a run without labels to the model that it trains."""

from torch import Tensor, nn

from vitlab.errors import ConfigError
from vitlab.images.preprocessing import Preprocessing
from vitlab.models.pretraining import MaskedAutoencoder, MaskedPatch, Objective
from vitlab.models.vit import VisionTransformer
from vitlab.nn.attention import SelfAttention
from vitlab.nn.masking import colour_count
from vitlab.training.config import TrainConfig

# Models that cannot learn from hidden patches, and why.

MOST_COLOURS = 4096
DROPPED = ("none", "learned1d", "learned2d", "sincos2d")
"""Positions that a token keeps where others are left out."""


def why_not(model: nn.Module, objective: str) -> str | None:
    """What keeps the model from learning by this objective, with what is valid; None: nothing."""
    if not isinstance(model, VisionTransformer):
        return f"a {type(model).__name__} has no patches; valid: a vit_… model"
    config = model.config
    if config.stem != "patch":
        return (
            f"with stem {config.stem!r} other tokens have seen the pixels of a hidden patch; "
            f"valid: stem 'patch'"
        )
    if not config.depth:
        return "the model has no encoder blocks; valid: a depth of 1 or more"
    if config.pool_after is not None:
        return (
            f"pool_after {config.pool_after} leaves no token for each patch; valid: pool_after none"
        )
    if config.grid[0] * config.grid[1] < 2:
        return "an image is one patch; valid: two or more, by a larger image or a smaller patch"
    if objective == MaskedPatch.name:
        return _no_colours(config.channels)
    return _not_dropped(model) if objective == MaskedAutoencoder.name else None


def _no_colours(channels: int) -> str | None:
    if colour_count(channels) <= MOST_COLOURS:
        return None
    return (
        f"{channels} channels of 3 bits are {colour_count(channels):,} colours; "
        f"valid: up to {MOST_COLOURS:,}, or mae"
    )


def _not_dropped(model: VisionTransformer) -> str | None:
    config = model.config
    if config.position not in DROPPED or config.position_at != "stem":
        return (
            f"position {config.position!r} at {config.position_at!r} needs the whole grid; "
            f"valid: {', '.join(DROPPED)} at 'stem', or masked-patch"
        )
    for block in model.encoder.blocks:
        attention = block.attention
        if not isinstance(attention, SelfAttention) or attention.pattern is not None:
            return (
                f"attention {config.attention!r} needs the whole grid; valid: full, or masked-patch"
            )
    return None


def with_objective(
    model: nn.Module, config: TrainConfig, preprocessing: Preprocessing
) -> Objective:
    """The model and what it learns by; a model that cannot is refused."""
    assert config.objective is not None
    hindrance = why_not(model, config.objective)
    if hindrance is not None:
        raise ConfigError(f"{config.objective}: {hindrance}")
    assert isinstance(model, VisionTransformer)
    if config.mae is not None:
        return MaskedAutoencoder(
            model,
            mask=config.mae.mask,
            decoder_width=config.mae.decoder_width,
            decoder_depth=config.mae.decoder_depth,
            decoder_heads=config.mae.decoder_heads,
        )
    assert config.masked_patch is not None
    return MaskedPatch(
        model,
        mask=config.masked_patch.mask,
        replaced=config.masked_patch.replaced,
        swapped=config.masked_patch.swapped,
        mean=preprocessing.mean,
        std=preprocessing.std,
    )


def mean_loss(losses: Tensor, targets: Tensor, label_smoothing: float) -> Tensor:
    """The loss of a model that tells its own for each image: targets are not asked."""
    return losses.float().mean()
