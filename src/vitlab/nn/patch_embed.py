"""Patches to tokens: one linear projection of every patch (arXiv:2010.11929, equation 1)."""

from typing import Literal

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from vitlab.nn.encoder import NormKind, make_norm
from vitlab.nn.init import init_projection
from vitlab.nn.resnet import ResNetTrunk


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
        norm_kind: NormKind = "layer",
        norm_eps: float = 1e-6,
        bias: bool = True,
    ) -> None:
        super().__init__()
        flat = channels * patch_size[0] * patch_size[1]
        self.patch_size = patch_size
        self.proj = nn.Conv2d(channels, width, patch_size, stride=patch_size, bias=bias)
        self.norm_before, self.norm_after = (
            make_norm(size, kind=norm_kind, eps=norm_eps) if norm in places else None
            for size, places in ((flat, ("before", "both")), (width, ("after", "both")))
        )
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


# Stems with convolutions: the hybrid of section 3.1, and a small tokenizer (CCT).


class HybridEmbed(PatchEmbed):
    """Patches of a ResNet's feature map instead of patches of the image."""

    def __init__(
        self,
        resnet: ResNetTrunk,
        width: int,
        *,
        patch_size: tuple[int, int],
        norm: Literal["none", "after"] = "none",
        norm_eps: float = 1e-6,
    ) -> None:
        super().__init__(
            resnet.out_channels, width, patch_size=patch_size, norm=norm, norm_eps=norm_eps
        )
        self.resnet = resnet

    def forward(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B h w D"]:
        return super().forward(self.resnet(images))


class ConvEmbed(nn.Module):
    """Tokens from a few 3x3 convolutions, as in arXiv:2104.05704."""

    def __init__(
        self,
        channels: int,
        width: int,
        *,
        widths: tuple[int, ...],
        strides: tuple[int, ...],
        downsample: Literal["pool", "stride"],
        pool_at: Literal["after", "before"] = "after",
        norm: Literal["none", "batch"],
        activation: Literal["relu", "gelu"],
        norm_after: bool = False,
        norm_eps: float = 1e-6,
    ) -> None:
        super().__init__()
        ins, outs = (channels, *widths), (*widths, width)
        self.convs = nn.ModuleList(
            ConvStep(
                c_in,
                c_out,
                stride=stride,
                downsample=downsample,
                pool_at=pool_at,
                norm=norm,
                activation=activation,
            )
            for c_in, c_out, stride in zip(ins, outs, strides, strict=True)
        )
        self.norm_after = nn.LayerNorm(width, eps=norm_eps) if norm_after else None

    def forward(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B h w D"]:
        # Channels last: the fastest layout for convolutions, and already that of the tokens.
        x = images.contiguous(memory_format=torch.channels_last)
        for step in self.convs:
            x = step(x)
        x = rearrange(x, "b d h w -> b h w d")
        return x if self.norm_after is None else self.norm_after(x)


class ConvStep(nn.Module):
    """Convolution, norm, activation, and the max-pool that takes the stride in CCT.

    A pool `before` norm and activation has windows that do not overlap, and reduces their cost.
    """

    def __init__(
        self,
        channels_in: int,
        channels_out: int,
        *,
        stride: int,
        downsample: Literal["pool", "stride"],
        pool_at: Literal["after", "before"] = "after",
        norm: Literal["none", "batch"],
        activation: Literal["relu", "gelu"],
    ) -> None:
        super().__init__()
        self.pool = stride if downsample == "pool" else 1
        self.pool_first = pool_at == "before"
        own_stride = 1 if downsample == "pool" else stride
        self.conv = nn.Conv2d(channels_in, channels_out, 3, own_stride, 1, bias=False)
        self.norm = nn.BatchNorm2d(channels_out) if norm == "batch" else None
        self.activation = F.relu if activation == "relu" else F.gelu
        init_projection(self.conv)

    def forward(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B E h w"]:
        x = self.conv(x)
        if self.pool > 1 and self.pool_first:
            x = F.max_pool2d(x, self.pool)
        x = self.activation(x if self.norm is None else self.norm(x))
        if self.pool > 1 and not self.pool_first:
            x = F.max_pool2d(x, 3, self.pool, padding=1)
        return x
