"""The mean colour of a patch as a class: three bits for each channel, 512 colours of RGB."""

import torch
from einops import reduce
from jaxtyping import Float, Int
from torch import Tensor

LEVELS = 8
"""Of a channel: three bits."""


def colour_count(channels: int) -> int:
    """How many colours there are."""
    return LEVELS**channels


def colour_classes(
    pixels: Float[Tensor, "B C H W"], patch_size: tuple[int, int]
) -> Int[Tensor, "B N"]:
    """The class of each patch's mean colour, of values from 0 to 1; the first channel counts most.

    Patches are in the order of tokens, row by row.
    """
    ph, pw = patch_size
    means = reduce(pixels, "b c (h ph) (w pw) -> b (h w) c", "mean", ph=ph, pw=pw)
    levels = (means * LEVELS).floor().clamp(0, LEVELS - 1).long()
    return (levels * _places(pixels.shape[1], pixels.device)).sum(dim=-1)


def colours_of(classes: Int[Tensor, "B N"], channels: int) -> Float[Tensor, "B N C"]:
    """The colour in the middle of each class, from 0 to 1."""
    levels = classes[..., None] // _places(channels, classes.device) % LEVELS
    return (levels + 0.5) / LEVELS


def _places(channels: int, device: torch.device) -> Int[Tensor, " C"]:
    return LEVELS ** torch.arange(channels - 1, -1, -1, device=device)
