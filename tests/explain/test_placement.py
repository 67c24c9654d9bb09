"""Where a map lies in the picture: through stems, grids, crops and resizing."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from models.vit_cases import BASE
from reference.random_weights import randomise
from vitlab import create_model
from vitlab.explain.explanation import Axis, cell_means, placement, sample, to_image
from vitlab.images.preprocessing import Preprocessing
from vitlab.models.cnn import ResNet, TutorialCNN
from vitlab.models.vit import VisionTransformer

STEMS: dict[str, dict[str, Any]] = {
    "patch": {"patch_size": (3, 2), "image_size": (21, 22)},
    "shifted": {"stem": "shifted", "patch_size": (4, 3), "image_size": (28, 33)},
    "conv": {"stem": "conv", "patch_size": 4, "image_size": (28, 44), "conv_widths": (7,)},
    "conv_stride": {
        "stem": "conv",
        "patch_size": 4,
        "image_size": (28, 44),
        "conv_widths": (7,),
        "conv_downsample": "stride",
    },
    "conv_pool_first": {
        "stem": "conv",
        "patch_size": 4,
        "image_size": (28, 44),
        "conv_widths": (7,),
        "conv_pool_at": "before",
    },
    "conv_three": {
        "stem": "conv",
        "patch_size": 4,
        "image_size": (28, 44),
        "conv_strides": (1, 4, 1),
        "conv_widths": (7, 2),
    },
}


def seen_by(stem: Any, size: tuple[int, int], channels: int, cell: tuple[int, int]) -> Tensor:
    """Top, left, bottom, right of the pixels that one cell of a grid [B, h, w, D] depends on."""
    height, width = size
    generator = torch.Generator().manual_seed(0)
    base = torch.randn(1, channels, height, width, generator=generator)
    found = torch.zeros(height * width, dtype=torch.bool)
    for change in (5.0, -5.0):
        moved = base.repeat(height * width, 1, 1, 1)
        for pixel in range(height * width):
            moved[pixel, :, pixel // width, pixel % width] += change
        with torch.inference_mode():
            there, here = stem(moved)[:, cell[0], cell[1]], stem(base)[:, cell[0], cell[1]]
        found |= ((there - here).abs() > 1e-4).any(dim=1)
    places = found.view(height, width).nonzero()
    first, last = places.amin(dim=0), places.amax(dim=0) + 1
    return (first + last) / 2


@pytest.mark.parametrize("name", STEMS)
def test_a_patch_lies_in_the_middle_of_what_it_sees(name: str) -> None:
    config = replace(BASE, **STEMS[name])
    model = VisionTransformer(config).eval()
    randomise(model)
    cell = (3, 4)  # none at a border: there the image cuts what is seen
    middle = seen_by(model.stem, config.image_size, config.channels, cell)
    where = placement(model, config.image_size, config.grid)
    found = [axis.start + place * axis.step for axis, place in zip(where, cell, strict=True)]
    assert found == middle.tolist()


def test_cells_of_cnns_lie_in_the_middle_of_what_they_see() -> None:
    tutorial = create_model("cnn_tutorial").eval()
    assert isinstance(tutorial, TutorialCNN)

    def features(images: Tensor) -> Tensor:
        return tutorial.feature_map(images).permute(0, 2, 3, 1)

    middle = seen_by(features, (32, 32), 3, (4, 5))
    rows, columns = placement(tutorial, (32, 32), (10, 10))
    assert [rows.start + 4 * rows.step, columns.start + 5 * columns.step] == middle.tolist()

    residual = create_model("resnet18_cifar", width=2, layers=(1, 1)).eval()
    assert isinstance(residual, ResNet)
    randomise(residual)
    middle = seen_by(
        lambda images: residual.feature_map(images).permute(0, 2, 3, 1), (20, 20), 3, (5, 4)
    )
    rows, columns = placement(residual, (20, 20), (10, 10))
    assert [rows.start + 5 * rows.step, columns.start + 4 * columns.step] == middle.tolist()


@pytest.mark.parametrize(
    ("size", "layers", "patch", "expected"),
    [
        ((20, 36), (), (1, 3), (Axis(2.0, 4), Axis(6.0, 12))),
        ((224, 224), (3, 4, 9), 1, (Axis(8.0, 16), Axis(8.0, 16))),
        # Six rows of the feature map come from 21 pixels: a pixel and a half of padding outside.
        ((21, 13), (1,), (3, 2), (Axis(4.5, 12), Axis(2.5, 8))),
    ],
)
def test_hybrids_by_their_stride(size: Any, layers: Any, patch: Any, expected: Any) -> None:
    config = replace(
        BASE,
        stem="resnet",
        resnet_width=32,
        resnet_layers=layers,
        image_size=size,
        patch_size=patch,
    )
    with torch.device("meta"):
        model = VisionTransformer(config)
    assert placement(model, size, config.grid) == expected


def test_a_coarser_grid_lies_over_the_finer_one() -> None:
    config = replace(BASE, patch_size=(3, 2), image_size=(12, 16))
    with torch.device("meta"):
        model = VisionTransformer(config)
    fine, coarse = (placement(model, (12, 16), grid) for grid in ((4, 8), (2, 4)))
    for axis in (0, 1):
        # The middle of the first coarse cell lies between those of the first two fine ones.
        assert coarse[axis].start == fine[axis].start + fine[axis].step / 2
        assert coarse[axis].step == 2 * fine[axis].step


def test_between_middles_a_map_is_linear_and_beyond_them_constant() -> None:
    values = np.array([[0.0, 10.0, 30.0], [40.0, 50.0, 70.0]], np.float32)
    where = (Axis(2.0, 4.0), Axis(1.5, 3.0))
    found = sample(values, where, np.array([0.0, 2.0, 3.0, 8.0]), np.array([0.0, 3.0, 4.5, 6.0]))
    expected = [[0, 5, 10, 20], [0, 5, 10, 20], [10, 15, 20, 30], [40, 45, 50, 60]]
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert sample(values[:1, :1], where, np.array([7.0]), np.array([3.0])).tolist() == [[0.0]]


@pytest.mark.parametrize("keep_aspect", [True, False])
@pytest.mark.parametrize(("height", "width"), [(90, 150), (130, 70), (97, 97)])
@pytest.mark.parametrize("crop", [1.0, 0.8])
def test_what_is_bright_in_the_picture_is_bright_in_the_map(
    keep_aspect: bool, height: int, width: int, crop: float
) -> None:
    preprocessing = Preprocessing(
        size=(48, 56), crop=crop, mean=(0.0,), std=(1.0,), keep_aspect=keep_aspect
    )
    pixels = np.zeros((height, width), np.uint8)
    top, left = int(0.45 * height), int(0.4 * width)
    pixels[top : top + height // 5, left : left + width // 5] = 255
    prepared = torch.from_numpy(preprocessing.apply(Image.fromarray(pixels)))
    config = replace(BASE, channels=1, patch_size=(4, 4), image_size=(48, 56))
    with torch.device("meta"):
        model = VisionTransformer(config)
    where = placement(model, (48, 56), config.grid)
    values = cell_means(prepared, where, config.grid)[0].numpy()
    view = preprocessing.view((height, width))
    found = to_image(values, where, view)
    assert found.shape == (height, width)
    for axis, first, extent in ((0, top, height // 5), (1, left, width // 5)):
        weights = found.sum(axis=1 - axis)
        centre = (weights * (np.arange(len(weights)) + 0.5)).sum() / weights.sum()
        # Within a pixel and a half of a picture whose patches are 6 to 14 pixels wide.
        assert abs(centre - (first + extent / 2)) < 1.5
    first_row, first_column, last_row, last_column = view.box
    inside = np.zeros((height, width), bool)
    inside[
        int(np.ceil(first_row - 0.5)) : int(np.floor(last_row + 0.5)),
        int(np.ceil(first_column - 0.5)) : int(np.floor(last_column + 0.5)),
    ] = True
    flat = to_image(np.ones_like(values), where, view)
    assert ((flat > 0) == inside).all()


def test_the_box_is_what_the_crop_keeps() -> None:
    preprocessing = Preprocessing(size=(224, 224), crop=0.875, mean=(0.5,), std=(0.5,))
    assert preprocessing.view((512, 512)).box == (32.0, 32.0, 480.0, 480.0)
    assert preprocessing.view((512, 1024)).box == (32.0, 288.0, 480.0, 736.0)
    squeezed = replace(preprocessing, keep_aspect=False, crop=1.0)
    assert squeezed.view((300, 500)).box == (0.0, 0.0, 300.0, 500.0)


@pytest.mark.parametrize("step", [2.0, 4.0])
def test_pixels_between_two_cells_are_shared_out_evenly(step: float) -> None:
    side = int(step) * 5
    axis = Axis(start=0.5, step=step)
    values = torch.eye(side)[:, None].expand(side, 1, side)
    found = cell_means(values, (Axis(start=0.5, step=1.0), axis), (1, 5))
    counts = (found[:, 0] > 0).sum(dim=0)
    assert counts[1:-1].tolist() == [int(step)] * 3
