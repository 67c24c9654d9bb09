"""Augmentation of batches against the plain definition for one image."""

from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from reference import augment as reference
from vitlab.config import from_dict, override, to_dict
from vitlab.data.augment import geometry as augment
from vitlab.data.augment.config import AugmentConfig
from vitlab.data.augment.draws import draw
from vitlab.data.order import generator
from vitlab.errors import ConfigError, UnknownName, VitlabError
from vitlab.images.decode import Box, central_box, crop_box, random_box

B, C, H, W = 7, 3, 13, 11


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def pixels() -> Tensor:
    return torch.randint(256, (B, C, H, W), generator=seeded(), dtype=torch.uint8)


def floats() -> Tensor:
    return torch.randn(B, C, H, W, generator=seeded())


@pytest.mark.parametrize("images", [pixels(), floats()], ids=["uint8", "float"])
def test_mirror(images: Tensor) -> None:
    which = torch.tensor([True, False, True, True, False, False, True])
    for image, result, flipped in zip(images, augment.mirror(images, which), which, strict=True):
        expected = image.numpy()[:, :, ::-1] if flipped else image.numpy()
        np.testing.assert_array_equal(result.numpy(), expected)


@pytest.mark.parametrize("images", [pixels(), floats()], ids=["uint8", "float"])
def test_shift(images: Tensor) -> None:
    offsets = torch.tensor([[0, 0], [1, 0], [0, 1], [-3, 2], [4, -4], [-10, 10], [2, 3]])
    results = augment.shift(images, offsets)
    for image, result, (down, right) in zip(images, results, offsets.tolist(), strict=True):
        expected = reference.shifted(image.numpy(), down, right)
        np.testing.assert_array_equal(result.numpy(), expected)


def test_a_shift_beyond_the_image_reads_nothing_outside() -> None:
    images = pixels()
    far = augment.shift(images, torch.full((B, 2), 57))
    assert far.shape == images.shape
    assert far.any()
    dots = images[:, :, :1, :1]
    assert torch.equal(augment.shift(dots, torch.full((B, 2), 3)), dots)


def test_shifts_use_the_whole_range() -> None:
    ramp = torch.arange(100, dtype=torch.uint8).view(1, 1, 10, 10).expand(2000, -1, -1, -1)
    config = AugmentConfig(shift=2)
    results = augment.augment_pixels(ramp, config, draw(config, len(ramp), seeded()))
    centres, counts = results[:, 0, 5, 5].unique(return_counts=True)
    assert centres.tolist() == [10 * y + x for y in range(3, 8) for x in range(3, 8)]
    # Binomial with mean 80 and deviation 9: five of them on either side.
    assert counts.min() > 35
    assert counts.max() < 125


def test_resized_crop_is_pillows_within_a_level() -> None:
    images = pixels()
    boxes = torch.tensor(
        [Box(0, 0, H, W), Box(0, 0, 5, 7), Box(8, 4, 13, 11), Box(3, 3, 4, 4), Box(2, 1, 9, 11)]
        + [Box(0, 10, 13, 11), Box(6, 0, 7, 11)]
    )
    results = augment.resized_crop(images, boxes)
    for image, result, box in zip(images, results, boxes.tolist(), strict=True):
        expected = reference.resized_crop(image.numpy(), tuple(box)).astype(int)
        # Pillow rounds between its two passes, and its weights to 22 bits.
        assert np.abs(result.numpy() - expected).max() <= 1
    assert torch.equal(results[0], images[0])


@pytest.mark.parametrize("images", [pixels(), floats()], ids=["uint8", "float"])
def test_blank(images: Tensor) -> None:
    boxes = torch.tensor(
        [[2, 3, 5, 7], [-4, -4, 3, 3], [9, 8, 20, 20], [0, 0, 0, 0]] + [[0, 0, H, W]] * 3
    )
    for image, result, box in zip(
        images, augment.blank(images, boxes), boxes.tolist(), strict=True
    ):
        np.testing.assert_array_equal(result.numpy(), reference.blanked(image.numpy(), tuple(box)))


@pytest.mark.parametrize("side", [1, 4, 5])
def test_cutout_is_a_square_around_any_pixel(side: int) -> None:
    images = torch.ones(3000, 1, H, W)
    centres = draw(AugmentConfig(cutout=side), len(images), seeded()).cutout
    boxes = augment.cutout_boxes(images, side, centres)
    assert torch.equal(boxes[:, 2:] - boxes[:, :2], torch.full((3000, 2), side))
    centres = boxes[:, :2] + side // 2
    assert len(centres.unique(dim=0)) == H * W
    left = augment.blank(images, boxes).mean(dim=0)[0]
    # In the middle, side² of the H W squares cover a pixel.
    assert left[H // 2, W // 2].item() == pytest.approx(1 - side**2 / (H * W), abs=0.04)


def test_erasing_happens_as_often_and_as_much_as_said() -> None:
    images = torch.ones(2000, 1, 32, 32)
    draws = draw(AugmentConfig(erase=0.25), len(images), seeded())
    boxes = augment.erase_boxes(images, draws.erased, draws.erasing)
    sizes = boxes[:, 2:] - boxes[:, :2]
    erased = sizes.prod(dim=1) > 0
    assert 0.2 < erased.float().mean() < 0.3
    shares = sizes[erased].prod(dim=1) / 32**2
    # Sides are whole pixels, so shares and ratios leave their bounds a little.
    assert 0.015 < shares.min() < 0.04
    assert 0.28 < shares.max() < 0.36
    assert (boxes >= 0).all()
    assert (boxes <= 32).all()


def test_a_random_box_keeps_its_bounds() -> None:
    for seed in range(500):
        box = random_box((300, 400), area=(0.1, 0.7), ratio=(0.5, 3.0), draw=Random(seed))
        assert box is not None
        rows, columns = box.bottom - box.top, box.right - box.left
        assert 0.09 < rows * columns / 120_000 < 0.71
        assert 0.48 < columns / rows < 3.1
        assert 0 <= box.top < box.bottom <= 300
        assert 0 <= box.left < box.right <= 400


def test_random_boxes_reach_every_corner() -> None:
    boxes = [crop_box((9, 9), area=(0.1, 1), ratio=(1, 1), seed=seed) for seed in range(300)]
    assert {box.top for box in boxes} == set(range(7))
    assert {box.right for box in boxes} == set(range(3, 10))


@pytest.mark.parametrize(
    ("size", "ratio", "box"),
    [
        ((10, 100), (3 / 4, 4 / 3), Box(0, 43, 10, 56)),
        ((100, 10), (3 / 4, 4 / 3), Box(43, 0, 56, 10)),
        ((10, 11), (3 / 4, 4 / 3), Box(0, 0, 10, 11)),
        ((1, 50), (0.01, 0.02), Box(0, 24, 1, 25)),
    ],
)
def test_where_no_crop_fits_the_centre_is_taken(
    size: tuple[int, int], ratio: tuple[float, float], box: Box
) -> None:
    assert central_box(size, ratio) == box


def test_an_impossible_box_falls_back_to_the_centre() -> None:
    size, ratio = (10, 1000), (3 / 4, 4 / 3)
    assert random_box(size, area=(0.9, 1), ratio=ratio, draw=Random(0)) is None
    assert crop_box(size, area=(0.9, 1), ratio=ratio, seed=0) == central_box(size, ratio)


def test_alternating_flips_change_every_epoch() -> None:
    config = AugmentConfig(flip="alternate")
    index = torch.arange(5000)

    def flips(epoch: int, seed: int = 0) -> Tensor:
        draws = draw(config, len(index), seeded(epoch))
        found = augment.which_to_mirror(
            config, draws, index, torch.full_like(index, epoch), seed=seed
        )
        assert found is not None
        return found

    assert 0.47 < flips(0).float().mean() < 0.53
    assert torch.equal(flips(1), ~flips(0))
    assert torch.equal(flips(2), flips(0))
    assert 0.47 < (flips(0, seed=1) != flips(0)).float().mean() < 0.53
    neighbours = flips(0)[1:] == flips(0)[:-1]
    assert 0.47 < neighbours.float().mean() < 0.53


def test_random_flips_are_half_of_the_images() -> None:
    index, config = torch.arange(5000), AugmentConfig(flip="random")
    draws = draw(config, len(index), seeded())
    flips = augment.which_to_mirror(config, draws, index, index * 0, seed=0)
    assert 0.47 < flips.float().mean() < 0.53


def test_colour_jitter_stays_within_its_factors() -> None:
    images = torch.full((2000, 1, 2, 2), 100, dtype=torch.uint8)
    config = AugmentConfig(color_jitter=0.25)
    values = augment.augment_pixels(images, config, draw(config, len(images), seeded()))
    # A constant grey image knows neither contrast nor saturation: only brightness is left.
    assert values.min() >= 75
    assert values.max() <= 125
    assert len(values.unique()) > 45


def test_a_generator_follows_from_seed_and_purpose_alone() -> None:
    def draw(*key: Any) -> int:
        return int(torch.randint(2**62, (), generator=generator(*key)))

    assert draw(0, "augment", 5) == draw(0, "augment", 5)
    different = [
        draw(0, "augment", 5),
        draw(1, "augment", 5),
        draw(0, "order", 5),
        draw(0, "augment", 6),
        draw(0, "augment", "5"),
        draw(0, "augment"),
    ]
    assert len(set(different)) == len(different)


@pytest.mark.usefixtures("no_type_checks")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"flip": "sometimes"}, "unknown flip 'sometimes'; valid: alternate, none, random"),
        ({"policy": "randaug"}, "did you mean randaugment"),
        ({"repeats": 0}, "repeats 0 is not at least 1"),
        ({"policy_ops": 0}, "policy_ops 0"),
        ({"policy_magnitude": 31}, "policy_magnitude 31 is not in 0 to 30"),
        ({"shift": -1}, "shift -1"),
        ({"mixup": float("inf")}, "mixup inf"),
        ({"cutmix": float("nan")}, "cutmix nan"),
        ({"erase": 1.5}, "erase 1.5 is not in"),
        ({"color_jitter": -0.1}, "color_jitter -0.1"),
        ({"random_resized_crop": (0.5, 0.2)}, "random_resized_crop"),
        ({"random_resized_crop": (0.0, 1.0)}, "random_resized_crop"),
        ({"crop_ratio": (2.0, 1.0)}, "crop_ratio"),
    ],
)
def test_impossible_settings_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(VitlabError, match=message) as caught:
        AugmentConfig(**changes)
    assert isinstance(caught.value, (ConfigError, UnknownName))


def test_a_config_survives_json_and_takes_overrides() -> None:
    config = AugmentConfig(flip="alternate", random_resized_crop=(0.3, 1.0), mixup=0.8)
    assert from_dict(AugmentConfig, to_dict(config)) == config
    assert override(config, {"shift": "4", "random_resized_crop": "none"}).shift == 4


def test_by_default_nothing_happens() -> None:
    config = AugmentConfig()
    draws = draw(config, B, seeded())
    assert augment.augment_pixels(pixels(), config, draws).equal(pixels())
    assert augment.augment_normalised(floats(), config, draws).equal(floats())
    assert not config.mixes
