"""Models that cannot learn from hidden patches, and why."""

from torch import nn

from vitlab.models.pretraining.mae import MaskedAutoencoder
from vitlab.models.pretraining.masked_patch import MaskedPatch
from vitlab.models.vit import VisionTransformer
from vitlab.nn.attention import SelfAttention
from vitlab.nn.mean_colour import colour_count

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
