"""Corrupted patch embeddings: some are masked, some swapped, some kept (BERT's rule)."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vitlab.nn.masking import hidden_count, random_order, take


@dataclass(frozen=True)
class Corruption:
    """What becomes of the patches of each image."""

    chosen: Int[Tensor, "B M"]
    """The corrupted patches: those that something is to be told of."""
    masked: Bool[Tensor, "B N"]
    """Where the mask embedding stands."""
    source: Int[Tensor, "B N"]
    """Whose embedding stands at each other place: its own, or that of another patch."""

    def apply(
        self, patches: Float[Tensor, "B N D"], mask: Float[Tensor, " D"]
    ) -> Float[Tensor, "B N D"]:
        """The embeddings, corrupted."""
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
    """`share` of each image's patches; of these, parts are masked and swapped, the rest is kept.

    A swapped patch gets the embedding of any other patch of its image.
    """
    chosen = random_order(images, patches, device)[:, : hidden_count(patches, share)]
    kind = torch.rand(chosen.shape, device=device)
    away = torch.randint(1, patches, chosen.shape, device=device)
    swap = (kind >= masked) & (kind < masked + swapped)
    own = torch.arange(patches, device=device).expand(images, -1)
    return Corruption(
        chosen=chosen,
        masked=torch.zeros_like(own, dtype=torch.bool).scatter(1, chosen, kind < masked),
        source=own.scatter(1, chosen, torch.where(swap, (chosen + away) % patches, chosen)),
    )
