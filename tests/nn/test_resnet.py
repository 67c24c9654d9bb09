"""The hybrids' ResNet against its definition."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from reference import resnet as plain
from vitlab.nn.resnet import (
    Bottleneck,
    EpsAt,
    ResNetTrunk,
    StdConv2d,
    same_max_pool,
    same_padding,
)

# A different prime for every axis; the trunk's width is GroupNorm's smallest.
B, C, H, W, OUT = 2, 5, 23, 37, 7
WIDTH = 32
NORM_EPS, STD_EPS = 1e-6, 1e-5


def randomise(module: nn.Module) -> None:
    """Draw every parameter anew, so that no zero or one of the initialisation hides a mistake."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_()


def images(height: int = H, width: int = W) -> torch.Tensor:
    return torch.randn(B, C, height, width, dtype=torch.float64)


@pytest.mark.parametrize("eps_at", ["std", "variance"])
@pytest.mark.parametrize(("stride", "padding"), [(1, None), (2, None), (2, 3), (1, 0)])
def test_convolution_matches_the_definition(
    eps_at: EpsAt, stride: int, padding: int | None
) -> None:
    torch.manual_seed(0)
    conv = StdConv2d(C, OUT, 3, stride=stride, padding=padding, eps=0.1, eps_at=eps_at).double()
    x = images()
    pads = None if padding is None else ((padding, padding), (padding, padding))
    w = plain.standardise(conv.weight.detach().numpy(), 0.1, eps_at)
    expected = plain.conv(x.numpy(), w, stride=stride, pads=pads)
    torch.testing.assert_close(conv(x).detach().numpy(), expected)


def test_standardised_filters_have_zero_mean_and_unit_variance() -> None:
    conv = StdConv2d(C, OUT, 3, eps=1e-10, eps_at="variance").double()
    filters = conv.standardised().flatten(1)
    torch.testing.assert_close(filters.mean(1), torch.zeros(OUT, dtype=torch.float64))
    torch.testing.assert_close(
        filters.var(1, correction=0), torch.ones(OUT, dtype=torch.float64), atol=1e-6, rtol=0
    )


def test_initial_weights_are_truncated_with_the_variance_of_flax() -> None:
    torch.manual_seed(0)
    weight = StdConv2d(67, 61, 3, eps=STD_EPS, eps_at="std").weight
    std = (67 * 9) ** -0.5
    assert weight.std().item() == pytest.approx(std, rel=0.02)
    assert weight.abs().max().item() <= 2 * std / 0.8796 + 1e-6


@pytest.mark.parametrize(
    ("size", "kernel", "stride", "expected"),
    [
        (224, 7, 2, (2, 3)),
        (112, 3, 2, (0, 1)),
        (225, 7, 2, (3, 3)),
        (7, 3, 1, (1, 1)),
        (5, 3, 2, (1, 1)),
        (8, 1, 2, (0, 0)),
        (1, 3, 2, (1, 1)),
    ],
)
def test_padding_is_that_of_xla(
    size: int, kernel: int, stride: int, expected: tuple[int, int]
) -> None:
    assert same_padding(size, kernel, stride) == expected
    assert plain.same(size, kernel, stride) == expected


@pytest.mark.parametrize(("height", "width"), [(23, 37), (22, 37), (16, 26)])
def test_pool_leaves_the_border_out(height: int, width: int) -> None:
    x = images(height, width) - 10.0  # all negative: a border of zeros would win
    pooled = same_max_pool(x)
    assert pooled.shape[2:] == (math.ceil(height / 2), math.ceil(width / 2))
    torch.testing.assert_close(pooled.numpy(), plain.same_max_pool(x.numpy()), atol=0, rtol=0)


def test_unit_starts_as_its_residual() -> None:
    unit = Bottleneck(
        WIDTH * 4, WIDTH, stride=1, norm_eps=NORM_EPS, std_eps=STD_EPS, std_eps_at="std"
    )
    x = torch.randn(B, WIDTH * 4, 3, 5)
    assert not unit.projects
    torch.testing.assert_close(unit(x), x.relu(), atol=0, rtol=0)


@pytest.mark.parametrize("layers", [(), (1,), (2, 1, 1)])
@pytest.mark.parametrize("size", [(23, 37), (26, 32)])
def test_trunk_matches_the_definition(layers: tuple[int, ...], size: tuple[int, int]) -> None:
    torch.manual_seed(0)
    trunk = ResNetTrunk(
        C, layers=layers, width=WIDTH, norm_eps=NORM_EPS, std_eps=STD_EPS, std_eps_at="std"
    ).double()
    randomise(trunk)
    x = images(*size)
    with torch.no_grad():
        features = trunk(x).numpy()
    p = plain.parameters(trunk)
    expected = plain.trunk(p, x.numpy(), layers=layers, norm_eps=NORM_EPS, std_eps=STD_EPS)
    assert features.shape[1] == trunk.out_channels
    # Float64 through up to 13 layers of sums over a thousand terms.
    np.testing.assert_allclose(features, expected, atol=1e-10, rtol=1e-9)


def test_only_units_that_change_the_shape_project() -> None:
    trunk = ResNetTrunk(
        C, layers=(2, 3), width=WIDTH, norm_eps=NORM_EPS, std_eps=STD_EPS, std_eps_at="std"
    )
    found = {name for name, _ in trunk.named_modules() if name.endswith("conv_proj")}
    assert found == {"stages.0.0.conv_proj", "stages.1.0.conv_proj"}
