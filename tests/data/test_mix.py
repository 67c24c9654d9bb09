"""Mixup and CutMix against the definition for one pair; targets follow the pixels."""

import numpy as np
import pytest
import torch
from torch import Tensor

from reference import augment as reference
from vitlab.data.augment.config import AugmentConfig
from vitlab.data.augment.draws import beta, draw
from vitlab.data.augment.mix import cutmix, cutmix_boxes, mix, mixup

B, C, H, W, CLASSES = 5, 3, 13, 11, 7


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def batch() -> tuple[Tensor, Tensor]:
    images = torch.randn(B, C, H, W, generator=seeded(), dtype=torch.float64)
    targets = torch.eye(CLASSES, dtype=torch.float64)[torch.tensor([0, 3, 6, 3, 1])]
    return images, targets


PARTNER = torch.tensor([2, 0, 1, 4, 3])


def test_mixup() -> None:
    images, targets = batch()
    share = torch.tensor([1.0, 0.0, 0.5, 0.25, 0.8], dtype=torch.float64)
    mixed, mixed_targets = mixup(images, targets, partner=PARTNER, share=share)
    for i, (partner, own) in enumerate(zip(PARTNER, share, strict=True)):
        torch.testing.assert_close(mixed[i], own * images[i] + (1 - own) * images[partner])
        expected = own * targets[i] + (1 - own) * targets[partner]
        torch.testing.assert_close(mixed_targets[i], expected)


def test_cutmix() -> None:
    images, targets = batch()
    boxes = torch.tensor([[2, 3, 5, 7], [-4, -4, 3, 3], [9, 8, 20, 20], [0, 0, 0, 0], [0, 0, H, W]])
    mixed, mixed_targets = cutmix(images, targets, partner=PARTNER, boxes=boxes)
    for i, (partner, box) in enumerate(zip(PARTNER, boxes.tolist(), strict=True)):
        expected, share = reference.cutmix(images[i].numpy(), images[partner].numpy(), tuple(box))
        np.testing.assert_array_equal(mixed[i].numpy(), expected)
        expected_target = share * targets[i] + (1 - share) * targets[partner]
        torch.testing.assert_close(mixed_targets[i], expected_target)


def test_boxes_have_the_share_they_should() -> None:
    images = torch.zeros(500, 1, 100, 200)
    share = torch.linspace(0, 1, 500)
    boxes = cutmix_boxes(images, share, torch.rand(500, 2, generator=seeded()))
    sides = boxes[:, 2:] - boxes[:, :2]
    area = sides.prod(dim=1) / (100 * 200)
    # Each side loses up to one pixel of 100.
    torch.testing.assert_close(area, 1 - share, atol=0.02, rtol=0)
    centres = boxes[:, :2] + sides // 2
    assert (centres >= 0).all()
    assert (centres < torch.tensor([100, 200])).all()


@pytest.mark.parametrize("alpha", [0.2, 1.0, 8.0])
def test_shares_follow_the_beta_distribution(alpha: float) -> None:
    draws = beta(alpha, 20_000, seeded()).double()
    assert draws.mean().item() == pytest.approx(0.5, abs=0.01)
    assert draws.var().item() == pytest.approx(1 / (4 * (2 * alpha + 1)), rel=0.05)
    assert torch.equal(beta(alpha, 5, seeded(1)), beta(alpha, 5, seeded(1)))


def numbered(count: int) -> tuple[Tensor, Tensor]:
    """Image i is i everywhere and has class i: what a pixel shows is what its target should be."""
    images = torch.arange(count, dtype=torch.float32)[:, None, None, None].expand(-1, 1, 8, 8)
    return images, torch.eye(count)


@pytest.mark.parametrize(
    "config",
    [
        AugmentConfig(mixup=0.8),
        AugmentConfig(cutmix=1.0),
        AugmentConfig(mixup=0.8, cutmix=1.0),
        AugmentConfig(mixup=0.2, cutmix=1.0),
    ],
)
def test_targets_sum_to_one_and_tell_what_is_seen(config: AugmentConfig) -> None:
    images, targets = numbered(64)
    mixed, mixed_targets = mix(images, targets, draw(config, 64, seeded()))
    torch.testing.assert_close(mixed_targets.sum(dim=1), torch.ones(64))
    assert (mixed_targets >= 0).all()
    assert ((mixed_targets > 0).sum(dim=1) <= 2).all()
    seen = mixed.mean(dim=(1, 2, 3))
    torch.testing.assert_close(mixed_targets @ torch.arange(64.0), seen, atol=1e-3, rtol=1e-4)


def kinds(config: AugmentConfig) -> dict[str, int]:
    """How many images of many were blended, patched, or left alone."""
    images, targets = numbered(2000)
    mixed, _ = mix(images, targets[:, :1], draw(config, 2000, seeded()))
    values = [image.unique() for image in mixed]
    whole = sum(len(v) == 1 and v.item() == v.item() // 1 for v in values)
    patched = sum(len(v) == 2 for v in values)
    return {"alone": whole, "patched": patched, "blended": 2000 - whole - patched}


def test_each_image_is_mixed_in_one_way_as_often_as_said() -> None:
    only_mixup = kinds(AugmentConfig(mixup=1.0))
    assert only_mixup["patched"] == 0
    assert only_mixup["alone"] < 20
    only_cutmix = kinds(AugmentConfig(cutmix=1.0))
    assert only_cutmix["blended"] == 0
    both = kinds(AugmentConfig(mixup=1.0, cutmix=1.0))
    # Half are patched, but some boxes are smaller than a pixel or all of the image.
    assert 850 < both["blended"] < 1150
