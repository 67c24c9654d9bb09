"""Patches to tokens, one patch at a time."""

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from reference.random_weights import randomise
from reference.stems import patch_embed, shifted
from vitlab.nn.patch_embed import PatchEmbed, ShiftedPatchEmbed, flatten_patches, with_shifts

# A different prime for every axis.
B, C, D = 2, 5, 11
EPS = 1e-3
TOLERANCE = {"atol": 1e-12, "rtol": 1e-12}  # float64, other order of sums


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def arrays(module: nn.Module) -> Mapping[str, NDArray[np.float64]]:
    randomise(module)
    return {name: value.numpy() for name, value in module.state_dict().items()}


@pytest.mark.parametrize("norm", ["none", "before", "after", "both"])
@pytest.mark.parametrize("patch", [(3, 7), (1, 1), (2, 2), (3, 1)])
def test_flatten_and_project(patch: tuple[int, int], norm: Any) -> None:
    module = PatchEmbed(C, D, patch_size=patch, norm=norm, norm_eps=EPS).double()
    p = arrays(module)
    images = draw(B, C, 2 * patch[0], 3 * patch[1])
    found = module(images)
    assert found.shape == (B, 2, 3, D)
    for image in range(B):
        expected = patch_embed(images[image].numpy(), p, patch=patch, eps=EPS)
        torch.testing.assert_close(found[image], torch.from_numpy(expected), **TOLERANCE)


def test_a_convolution_is_the_linear_projection_of_the_paper() -> None:
    """[224, 224, 3] to [196, 768], both ways."""
    module = PatchEmbed(3, 768, patch_size=(16, 16)).double()
    images = draw(1, 3, 224, 224)
    flat = flatten_patches(images, (16, 16)).flatten(1, 2)
    assert flat.shape == (1, 196, 768)
    linear = nn.functional.linear(flat, module.proj.weight.flatten(1), module.proj.bias)
    found = module(images).flatten(1, 2)
    assert found.shape == (1, 196, 768)
    torch.testing.assert_close(found, linear, **TOLERANCE)


@pytest.mark.parametrize("patch", [(4, 6), (3, 7), (1, 1), (2, 1)])
def test_shifts(patch: tuple[int, int]) -> None:
    images = draw(B, C, 3 * patch[0], 2 * patch[1])
    found = with_shifts(images, patch)
    assert found.shape == (B, 5 * C, 3 * patch[0], 2 * patch[1])
    for image in range(B):
        assert torch.equal(found[image], torch.from_numpy(shifted(images[image].numpy(), patch)))


def test_shifts_are_diagonal_by_half_a_patch() -> None:
    images = torch.zeros(1, 1, 9, 9)
    images[0, 0, 4, 4] = 1.0
    spots = [(copy == 1).nonzero().tolist() for copy in with_shifts(images, (4, 2))[0]]
    assert spots == [[[4, 4]], [[6, 5]], [[6, 3]], [[2, 5]], [[2, 3]]]


@pytest.mark.parametrize("norm", ["before", "both"])
def test_shifted_patch_tokenization(norm: Literal["before", "both"]) -> None:
    patch = (4, 3)
    module = ShiftedPatchEmbed(C, D, patch_size=patch, norm=norm, norm_eps=EPS).double()
    p = arrays(module)
    assert module.proj.weight.shape == (D, 5 * C, *patch)
    images = draw(B, C, 8, 9)
    found = module(images)
    for image in range(B):
        wide = shifted(images[image].numpy(), patch)
        expected = patch_embed(wide, p, patch=patch, eps=EPS)
        torch.testing.assert_close(found[image], torch.from_numpy(expected), **TOLERANCE)
