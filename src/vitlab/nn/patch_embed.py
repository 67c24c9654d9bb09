"""Patches to tokens: one linear projection of every patch (arXiv:2010.11929, equation 1)."""

from typing import Literal

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from vitlab.nn.init import init_projection


class PatchEmbed(nn.Module):
    """Cut the image into patches and project each to `width`.

    Flattening and projecting is a convolution whose stride is its kernel size; with a norm before
    the projection the patches are flattened explicitly.
    """

    def __init__(
        self,
        channels: int,
        width: int,
        *,
        patch_size: tuple[int, int],
        norm: Literal["none", "before", "after", "both"] = "none",
        norm_eps: float = 1e-6,
    ) -> None:
        super().__init__()
        flat = channels * patch_size[0] * patch_size[1]
        self.patch_size = patch_size
        self.proj = nn.Conv2d(channels, width, patch_size, stride=patch_size)
        self.norm_before = nn.LayerNorm(flat, eps=norm_eps) if norm in ("before", "both") else None
        self.norm_after = nn.LayerNorm(width, eps=norm_eps) if norm in ("after", "both") else None
        init_projection(self.proj)

    def forward(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B h w D"]:
        if self.norm_before is None:
            x = rearrange(self.proj(images), "b d h w -> b h w d")
        else:
            x = self.norm_before(flatten_patches(images, self.patch_size))
            x = F.linear(x, self.proj.weight.flatten(1), self.proj.bias)
        return x if self.norm_after is None else self.norm_after(x)


class ShiftedPatchEmbed(PatchEmbed):
    """Shifted patch tokenization, arXiv:2112.13492: patches reach half a patch further."""

    def __init__(
        self,
        channels: int,
        width: int,
        *,
        patch_size: tuple[int, int],
        norm: Literal["before", "both"] = "before",
        norm_eps: float = 1e-6,
    ) -> None:
        super().__init__(5 * channels, width, patch_size=patch_size, norm=norm, norm_eps=norm_eps)

    def forward(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B h w D"]:
        return super().forward(with_shifts(images, self.patch_size))


def flatten_patches(
    images: Float[Tensor, "B C H W"], patch_size: tuple[int, int]
) -> Float[Tensor, "B h w F"]:
    """All pixels of each patch as one vector, channel by channel: the order of a convolution."""
    ph, pw = patch_size
    return rearrange(images, "b c (h ph) (w pw) -> b h w (c ph pw)", ph=ph, pw=pw)


def with_shifts(
    images: Float[Tensor, "B C H W"], patch_size: tuple[int, int]
) -> Float[Tensor, "B 5*C H W"]:
    """Images and four copies shifted diagonally by half a patch, padded with zeros."""
    height, width = images.shape[-2:]
    down, right = patch_size[0] // 2, patch_size[1] // 2
    padded = F.pad(images, (right, right, down, down))
    corners = [(0, 0), (0, 2 * right), (2 * down, 0), (2 * down, 2 * right)]
    moved = [padded[..., top : top + height, left : left + width] for top, left in corners]
    return torch.cat([images, *moved], dim=1)
