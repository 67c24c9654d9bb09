"""Hidden patches: which of them, the others alone, and all of them in their places again."""

import torch
from jaxtyping import Float, Int
from torch import Tensor


def hidden_count(patches: int, share: float) -> int:
    """How many of an image's patches are hidden: never none, never all."""
    return min(max(round(share * patches), 1), patches - 1)


def random_order(images: int, patches: int, device: torch.device) -> Int[Tensor, "B N"]:
    """The numbers of the patches, shuffled for each image by itself."""
    return torch.rand(images, patches, device=device).argsort(dim=1)


def take(x: Float[Tensor, "B N D"], places: Int[Tensor, "B M"]) -> Float[Tensor, "B M D"]:
    """The rows at these places, in this order."""
    return x.gather(1, places[..., None].expand(-1, -1, x.shape[2]))


def put_back(
    visible: Float[Tensor, "B V D"], filler: Float[Tensor, " D"], order: Int[Tensor, "B N"]
) -> Float[Tensor, "B N D"]:
    """Rows that were taken at the first places of `order`, each at its place; else the filler."""
    missing = order.shape[1] - visible.shape[1]
    fillers = filler.to(visible.dtype).expand(len(visible), missing, -1)
    return take(torch.cat([visible, fillers], dim=1), order.argsort(dim=1))
