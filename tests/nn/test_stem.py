"""Stems of convolutions against loops over windows."""

from typing import Literal

import pytest
import torch

from reference.layers import layer_norm
from reference.random_weights import randomise
from reference.resnet import trunk, under
from reference.stems import conv_tokens, patch_embed
from vitlab.nn.patch_embed import ConvEmbed, HybridEmbed
from vitlab.nn.resnet import ResNetTrunk

# A different prime for every axis.
B, C, D = 2, 5, 11
TOLERANCE = {"atol": 1e-10, "rtol": 1e-10}  # float64, other order of sums


@pytest.mark.parametrize("strides", [(4,), (2, 2), (1, 2, 3)])
@pytest.mark.parametrize("pooled", ["after", "before", ""])
@pytest.mark.parametrize(
    ("norm", "activation", "norm_after"),
    [("none", "relu", False), ("batch", "gelu", True), ("batch", "relu", False)],
)
def test_conv_tokenizer(
    strides: tuple[int, ...],
    pooled: Literal["after", "before", ""],
    norm: Literal["none", "batch"],
    activation: Literal["relu", "gelu"],
    norm_after: bool,
) -> None:
    module = ConvEmbed(
        C,
        D,
        widths=(7, 3)[: len(strides) - 1],
        strides=strides,
        downsample="pool" if pooled else "stride",
        pool_at=pooled or "after",
        norm=norm,
        activation=activation,
        norm_after=norm_after,
        norm_eps=0.01,
    )
    module.double().eval()
    randomise(module)
    p = {name: value.numpy() for name, value in module.state_dict().items()}
    images = torch.randn(B, C, 24, 12, dtype=torch.float64)
    found = module(images)
    for image in range(B):
        expected = conv_tokens(
            images[image].numpy(),
            p,
            strides=strides,
            pooled=pooled,
            activation=activation,
        )
        if norm_after:
            expected = layer_norm(expected, p, "norm_after", 0.01)
        torch.testing.assert_close(found[image], torch.from_numpy(expected), **TOLERANCE)


@pytest.mark.parametrize("norm", ["none", "after"])
def test_hybrid(norm: Literal["none", "after"]) -> None:
    resnet = ResNetTrunk(
        C, layers=(1, 1), width=32, norm_eps=1e-3, std_eps=0.1, std_eps_at="variance"
    )
    module = HybridEmbed(resnet, D, patch_size=(3, 1), norm=norm, norm_eps=0.01).double().eval()
    randomise(module)
    p = {name: value.numpy() for name, value in module.state_dict().items()}
    images = torch.randn(B, C, 23, 13, dtype=torch.float64)
    found = module(images)
    assert found.shape == (B, 1, 2, D)
    maps = trunk(
        under(p, "resnet."),
        images.numpy(),
        layers=(1, 1),
        norm_eps=1e-3,
        std_eps=0.1,
        std_eps_at="variance",
    )
    for image in range(B):
        expected = patch_embed(maps[image], p, patch=(3, 1), eps=0.01)
        torch.testing.assert_close(found[image], torch.from_numpy(expected), **TOLERANCE)
