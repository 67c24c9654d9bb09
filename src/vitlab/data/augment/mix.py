"""Mixing pairs of images and their targets: mixup (arXiv:1710.09412), CutMix (arXiv:1905.04899).

Every image has its own partner, share and kind of mixing.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vitlab.data.augment.draws import Draws
from vitlab.data.augment.geometry import inside


def mix(
    images: Float[Tensor, "B C H W"], targets: Float[Tensor, "B classes"], draws: Draws
) -> tuple[Float[Tensor, "B C H W"], Float[Tensor, "B classes"]]:
    """Mix images and targets as drawn: each image is blended or patched."""
    partner, patched = draws.partner, draws.patched
    assert partner is not None
    assert patched is not None
    blended = images, targets
    if draws.mixup is not None:
        share = draws.mixup.where(~patched, 1.0)
        blended = mixup(images, targets, partner=partner, share=share)
    if draws.cutmix is None or draws.boxes is None:
        return blended
    boxes = cutmix_boxes(images, draws.cutmix, draws.boxes)
    cut = cutmix(images, targets, partner=partner, boxes=boxes)
    choice = patched.to(images.device)
    return (
        torch.where(choice[:, None, None, None], cut[0], blended[0]),
        torch.where(choice[:, None], cut[1], blended[1]),
    )


def mixup(
    images: Float[Tensor, "B C H W"],
    targets: Float[Tensor, "B classes"],
    *,
    partner: Int[Tensor, " B"],
    share: Float[Tensor, " B"],
) -> tuple[Float[Tensor, "B C H W"], Float[Tensor, "B classes"]]:
    """`share` of each image and target, the rest from its partner."""
    partner, share = partner.to(images.device), share.to(images)
    return (
        torch.lerp(images.index_select(0, partner), images, share[:, None, None, None]),
        torch.lerp(targets[partner], targets, share[:, None]),
    )


def cutmix(
    images: Float[Tensor, "B C H W"],
    targets: Float[Tensor, "B classes"],
    *,
    partner: Int[Tensor, " B"],
    boxes: Int[Tensor, "B 4"],
) -> tuple[Float[Tensor, "B C H W"], Float[Tensor, "B classes"]]:
    """Each image with a box from its partner; targets follow the area of the box."""
    partner = partner.to(images.device)
    box = inside(boxes, images)
    share = 1 - box.to(targets).mean(dim=(1, 2))
    return (
        torch.where(box[:, None], images.index_select(0, partner), images),
        torch.lerp(targets[partner], targets, share[:, None]),
    )


def cutmix_boxes(
    images: Float[Tensor, "B C H W"], share: Float[Tensor, " B"], centres: Float[Tensor, "B 2"]
) -> Int[Tensor, "B 4"]:
    """Boxes of the image's proportions around these places, cut off at the image's edge."""
    sizes = torch.tensor(images.shape[-2:])
    sides = (sizes * (1 - share).sqrt()[:, None]).long()  # [B, 2]
    corners = (centres * sizes).long() - sides // 2
    return torch.cat([corners, corners + sides], dim=1)
