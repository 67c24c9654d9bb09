"""Masked patches: drawing them, selecting the others, and restoring the full sequence."""

from dataclasses import dataclass

import torch
from einops import reduce
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vitlab.nn.draws import per_image


def hidden_count(patches: int, share: float) -> int:
    """Number of hidden patches in an image: at least one, and never all."""
    return min(max(round(share * patches), 1), patches - 1)


def random_order(images: int, patches: int, device: torch.device) -> Int[Tensor, "B N"]:
    """Indices of the patches, shuffled independently for each image."""
    drawn = per_image(images, lambda count: torch.rand(count, patches, device=device))
    return drawn.argsort(dim=1)


def take(x: Float[Tensor, "B N D"], places: Int[Tensor, "B M"]) -> Float[Tensor, "B M D"]:
    """Rows at these places, in this order."""
    return x.gather(1, places[..., None].expand(-1, -1, x.shape[2]))


def put_back(
    visible: Float[Tensor, "B V D"], filler: Float[Tensor, " D"], order: Int[Tensor, "B N"]
) -> Float[Tensor, "B N D"]:
    """Full sequence: visible rows at the first places of `order`, the filler everywhere else."""
    missing = order.shape[1] - visible.shape[1]
    fillers = filler.to(visible.dtype).expand(len(visible), missing, -1)
    return take(torch.cat([visible, fillers], dim=1), order.argsort(dim=1))


# Corrupted patch embeddings: some are masked, some swapped, some kept (BERT's rule).


@dataclass(frozen=True)
class Corruption:
    """Assignment of masked, swapped and kept patches in each image."""

    chosen: Int[Tensor, "B M"]
    """Corrupted patches: the targets of the prediction."""
    masked: Bool[Tensor, "B N"]
    """True where the mask embedding is used."""
    source: Int[Tensor, "B N"]
    """Index of the patch whose embedding is used at each other place: its own or another."""

    def apply(
        self, patches: Float[Tensor, "B N D"], mask: Float[Tensor, " D"]
    ) -> Float[Tensor, "B N D"]:
        """Corrupted embeddings."""
        moved = take(patches, self.source)
        return torch.where(self.masked[..., None], mask.to(moved.dtype), moved)


def draw_corruption(
    images: int,
    patches: int,
    *,
    share: float,
    masked: float,
    swapped: float,
    device: torch.device,
) -> Corruption:
    """Corrupt `share` of each image's patches: parts are masked and swapped, the rest is kept.

    A swapped patch gets the embedding of any other patch of its image.
    """
    chosen = random_order(images, patches, device)[:, : hidden_count(patches, share)]
    hidden = chosen.shape[1]
    kind = per_image(images, lambda count: torch.rand(count, hidden, device=device))
    away = per_image(
        images, lambda count: torch.randint(1, patches, (count, hidden), device=device)
    )
    swap = (kind >= masked) & (kind < masked + swapped)
    own = torch.arange(patches, device=device).expand(images, -1)
    return Corruption(
        chosen=chosen,
        masked=torch.zeros_like(own, dtype=torch.bool).scatter(1, chosen, kind < masked),
        source=own.scatter(1, chosen, torch.where(swap, (chosen + away) % patches, chosen)),
    )


# The mean colour of a patch as a class: three bits for each channel, 512 colours of RGB.

LEVELS = 8
"""Levels of a channel: three bits."""


def colour_count(channels: int) -> int:
    """Number of colour classes."""
    return LEVELS**channels


def colour_classes(
    pixels: Float[Tensor, "B C H W"], patch_size: tuple[int, int]
) -> Int[Tensor, "B N"]:
    """Class of each patch's mean colour, values from 0 to 1; the first channel counts most.

    Patches are in the order of tokens, row by row.
    """
    ph, pw = patch_size
    means = reduce(pixels, "b c (h ph) (w pw) -> b (h w) c", "mean", ph=ph, pw=pw)
    levels = (means * LEVELS).floor().clamp(0, LEVELS - 1).long()
    return (levels * _places(pixels.shape[1], pixels.device)).sum(dim=-1)


def colours_of(classes: Int[Tensor, "B N"], channels: int) -> Float[Tensor, "B N C"]:
    """Centre colour of each class, from 0 to 1."""
    levels = classes[..., None] // _places(channels, classes.device) % LEVELS
    return (levels + 0.5) / LEVELS


def _places(channels: int, device: torch.device) -> Int[Tensor, " C"]:
    return LEVELS ** torch.arange(channels - 1, -1, -1, device=device)
