"""The ResNet of the hybrids: GroupNorm and standardised weights, as in BiT (arXiv:1912.11370).

arXiv:2010.11929, section 3.1: the transformer reads the feature map of this trunk.
"""

import math
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from vitlab.nn.init import lecun_normal_

EpsAt = Literal["std", "variance"]
GROUPS = 32
EXPANSION = 4


class StdConv2d(nn.Conv2d):
    """A convolution without bias whose filters have zero mean and unit variance."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        *,
        stride: int = 1,
        padding: int | None = None,
        eps: float,
        eps_at: EpsAt,
    ) -> None:
        """`padding` None pads as XLA's SAME does; a number pads every side by it."""
        super().__init__(in_channels, out_channels, kernel_size, stride, padding or 0, bias=False)
        self.same = padding is None
        self.eps = eps
        self.eps_at = eps_at

    def reset_parameters(self) -> None:
        """Draw the weights as Flax does: truncated normal, variance 1 / fan in."""
        lecun_normal_(self.weight)

    def standardised(self) -> Float[Tensor, "O I P P"]:
        """Standardised filters, as used by the convolution."""
        variance, mean = torch.var_mean(self.weight, dim=(1, 2, 3), correction=0, keepdim=True)
        if self.eps_at == "std":
            return (self.weight - mean) / (variance.sqrt() + self.eps)
        return (self.weight - mean) * (variance + self.eps).rsqrt()

    def forward(self, x: Float[Tensor, "B I H W"]) -> Float[Tensor, "B O h w"]:
        if self.same:
            x = same_pad(x, self.kernel_size[0], self.stride[0], value=0.0)
        return F.conv2d(x, self.standardised(), stride=self.stride, padding=self.padding)


def same_padding(size: int, kernel: int, stride: int) -> tuple[int, int]:
    """Pixels that XLA adds before and after an axis so that ceil(size / stride) windows fit."""
    total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
    return total // 2, total - total // 2


def same_pad(
    x: Float[Tensor, "B C H W"], kernel: int, stride: int, *, value: float
) -> Float[Tensor, "B C h w"]:
    """Pad `x` as XLA's SAME padding does for a square window."""
    height, width = x.shape[-2:]
    border = (*same_padding(width, kernel, stride), *same_padding(height, kernel, stride))
    return F.pad(x, border, value=value) if any(border) else x


def same_max_pool(x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B C h w"]:
    """Maximum over 3x3 windows at stride 2, without the border."""
    return F.max_pool2d(same_pad(x, 3, 2, value=-math.inf), 3, 2)


class Root(nn.Module):
    """The first convolution, with norm and pooling: the image at a quarter of its size."""

    def __init__(
        self, channels: int, width: int, *, norm_eps: float, std_eps: float, std_eps_at: EpsAt
    ) -> None:
        super().__init__()
        self.conv = StdConv2d(channels, width, 7, stride=2, eps=std_eps, eps_at=std_eps_at)
        self.norm = nn.GroupNorm(GROUPS, width, eps=norm_eps)

    def forward(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B E h w"]:
        return same_max_pool(F.relu(self.norm(self.conv(images))))


class Bottleneck(nn.Module):
    """A residual unit of three convolutions that starts as the identity (or its projection)."""

    def __init__(
        self,
        channels: int,
        width: int,
        *,
        stride: int,
        norm_eps: float,
        std_eps: float,
        std_eps_at: EpsAt,
    ) -> None:
        super().__init__()
        out = width * EXPANSION
        self.projects = channels != out or stride != 1
        if self.projects:
            self.conv_proj = StdConv2d(
                channels, out, 1, stride=stride, eps=std_eps, eps_at=std_eps_at
            )
            self.norm_proj = nn.GroupNorm(GROUPS, out, eps=norm_eps)
        self.conv1 = StdConv2d(channels, width, 1, eps=std_eps, eps_at=std_eps_at)
        self.norm1 = nn.GroupNorm(GROUPS, width, eps=norm_eps)
        self.conv2 = StdConv2d(width, width, 3, stride=stride, eps=std_eps, eps_at=std_eps_at)
        self.norm2 = nn.GroupNorm(GROUPS, width, eps=norm_eps)
        self.conv3 = StdConv2d(width, out, 1, eps=std_eps, eps_at=std_eps_at)
        self.norm3 = nn.GroupNorm(GROUPS, out, eps=norm_eps)
        nn.init.zeros_(self.norm3.weight)

    def forward(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B E h w"]:
        residual = self.norm_proj(self.conv_proj(x)) if self.projects else x
        y = F.relu(self.norm1(self.conv1(x)))
        y = F.relu(self.norm2(self.conv2(y)))
        return F.relu(residual + self.norm3(self.conv3(y)))


class ResNetTrunk(nn.Module):
    """Root and stages of a ResNet, no classifier; each stage after the first halves the map."""

    def __init__(
        self,
        channels: int,
        *,
        layers: tuple[int, ...],
        width: int,
        norm_eps: float,
        std_eps: float,
        std_eps_at: EpsAt,
    ) -> None:
        super().__init__()
        self.root = Root(channels, width, norm_eps=norm_eps, std_eps=std_eps, std_eps_at=std_eps_at)
        self.stages = nn.ModuleList()
        self.out_channels = width
        for index, units in enumerate(layers):
            stage = nn.Sequential()
            for unit in range(units):
                stage.append(
                    Bottleneck(
                        self.out_channels,
                        width * 2**index,
                        stride=2 if index and not unit else 1,
                        norm_eps=norm_eps,
                        std_eps=std_eps,
                        std_eps_at=std_eps_at,
                    )
                )
                self.out_channels = width * 2**index * EXPANSION
            self.stages.append(stage)

    def forward(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B E h w"]:
        x = self.root(images)
        for stage in self.stages:
            x = stage(x)
        return x
