"""CNN baselines: the PyTorch CIFAR-10 tutorial's network, ResNets for 32x32 images, and BiT's.

The paper's own baseline is BiT (arXiv:1912.11370): "ResNet (BiT)" in its figures 3 to 5.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from vitlab.errors import InputError
from vitlab.models.config import pair
from vitlab.models.variants import ResNetConfig, TutorialCNNConfig
from vitlab.nn.resnet import EXPANSION, GROUPS, StdConv2d

NORM_EPS = 1e-5
STD_EPS = 1e-8


class TutorialCNN(nn.Module):
    """Two convolutions and three linear layers, initialised as PyTorch does by default."""

    def __init__(self, config: TutorialCNNConfig) -> None:
        super().__init__()
        self.config = config
        rows, columns = (((side - 4) // 2 - 4) // 2 for side in pair(config.image_size))
        self.conv1 = nn.Conv2d(config.channels, 6, 5)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(16 * rows * columns, 120)
        self.fc2 = nn.Linear(120, 84)
        self.head = nn.Linear(84, config.classes) if config.classes else nn.Identity()

    def forward(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B E"]:
        return self.classify_map(self.feature_map(images))

    def feature_map(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D h w"]:
        """Last feature map that still has spatial axes."""
        _check_channels(images, self.config.channels)
        if tuple(images.shape[2:]) != pair(self.config.image_size):
            raise InputError(
                f"images are {tuple(images.shape[2:])} (height, width); "
                f"the model takes {pair(self.config.image_size)}"
            )
        x = F.max_pool2d(F.relu(self.conv1(images)), 2)
        return F.relu(self.conv2(x))

    def pool_map(self, x: Float[Tensor, "B D h w"]) -> Float[Tensor, "B R"]:
        """Input of the head, from such a feature map."""
        x = F.max_pool2d(x, 2)
        x = F.relu(self.fc1(x.flatten(1)))
        return F.relu(self.fc2(x))

    def classify_map(self, x: Float[Tensor, "B D h w"]) -> Float[Tensor, "B E"]:
        """Logits, from such a feature map."""
        return self.head(self.pool_map(x))


class ResNet(nn.Module):
    """Root, stages of residual blocks, the mean over the map, and a linear head."""

    def __init__(self, config: ResNetConfig) -> None:
        super().__init__()
        self.config = config
        bit = config.family == "bit"
        root, block = (BiTRoot, PreActBottleneck) if bit else (CifarRoot, BasicBlock)
        self.root = root(config.channels, config.width)
        self.stages = nn.Sequential()
        channels, width = config.width, config.width
        for index, units in enumerate(config.layers):
            stage = nn.Sequential(block(channels, width, stride=2 if index else 1))
            channels = width * EXPANSION if bit else width
            stage.extend(block(channels, width, stride=1) for _ in range(units - 1))
            self.stages.append(stage)
            width *= 2
        if bit:
            self.norm = nn.GroupNorm(GROUPS, channels, eps=NORM_EPS)
        self.head = nn.Linear(channels, config.classes) if config.classes else nn.Identity()
        self._initialise()

    def forward(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B E"]:
        return self.classify_map(self.feature_map(images))

    def feature_map(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D h w"]:
        """Last feature map that still has spatial axes."""
        _check_channels(images, self.config.channels)
        x = self.stages(self.root(images))
        return F.relu(self.norm(x)) if self.config.family == "bit" else x

    def pool_map(self, x: Float[Tensor, "B D h w"]) -> Float[Tensor, "B D"]:
        """Input of the head, from such a feature map."""
        return x.mean(dim=(2, 3))

    def classify_map(self, x: Float[Tensor, "B D h w"]) -> Float[Tensor, "B E"]:
        """Logits, from such a feature map."""
        return self.head(self.pool_map(x))

    def _initialise(self) -> None:
        """He's normal for plain convolutions; small weights and no bias in the head."""
        for module in self.modules():
            if isinstance(module, nn.Conv2d) and not isinstance(module, StdConv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        if isinstance(self.head, nn.Linear):
            nn.init.normal_(self.head.weight, std=0.01)
            nn.init.zeros_(self.head.bias)


class CifarRoot(nn.Module):
    """The first convolution of a ResNet for small images: the map keeps the image's size."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width, eps=NORM_EPS)

    def forward(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D H W"]:
        return F.relu(self.norm(self.conv(images)))


class BasicBlock(nn.Module):
    """Residual block of two 3x3 convolutions; the input, or its projection, is added."""

    def __init__(self, channels: int, width: int, *, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(width, eps=NORM_EPS)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width, eps=NORM_EPS)
        self.projects = channels != width or stride != 1
        if self.projects:
            self.conv_proj = nn.Conv2d(channels, width, 1, stride, bias=False)
            self.norm_proj = nn.BatchNorm2d(width, eps=NORM_EPS)

    def forward(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D h w"]:
        residual = self.norm_proj(self.conv_proj(x)) if self.projects else x
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(residual + self.norm2(self.conv2(y)))


class BiTRoot(nn.Module):
    """BiT's first convolution and pool, without norm: the blocks have their own."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.conv = _std_conv(channels, width, 7, stride=2)

    def forward(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D h w"]:
        # BiT pads the pool with zeros, and its input may be negative: not max_pool2d's own padding.
        return F.max_pool2d(_framed(self.conv(images)), 3, 2)


def _framed(x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B C h w"]:
    """`x` padded with zeros on every side.

    Not by `F.pad`: ONNX Runtime (1.31) merges a Pad into the pool behind it, whose border is -inf.
    """
    row = x.new_zeros(*x.shape[:2], 1, x.shape[3])
    x = torch.cat([row, x, row], dim=2)
    column = x.new_zeros(*x.shape[:3], 1)
    return torch.cat([column, x, column], dim=3)


class PreActBottleneck(nn.Module):
    """Norm and ReLU before each of three convolutions (arXiv:1603.05027), stride on the 3x3 one."""

    def __init__(self, channels: int, width: int, *, stride: int) -> None:
        super().__init__()
        out = width * EXPANSION
        self.norm1 = nn.GroupNorm(GROUPS, channels, eps=NORM_EPS)
        self.conv1 = _std_conv(channels, width, 1)
        self.norm2 = nn.GroupNorm(GROUPS, width, eps=NORM_EPS)
        self.conv2 = _std_conv(width, width, 3, stride=stride)
        self.norm3 = nn.GroupNorm(GROUPS, width, eps=NORM_EPS)
        self.conv3 = _std_conv(width, out, 1)
        self.projects = channels != out or stride != 1
        if self.projects:
            self.conv_proj = _std_conv(channels, out, 1, stride=stride)

    def forward(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B E h w"]:
        y = F.relu(self.norm1(x))
        residual = self.conv_proj(y) if self.projects else x
        y = F.relu(self.norm2(self.conv1(y)))
        y = F.relu(self.norm3(self.conv2(y)))
        return residual + self.conv3(y)


def _std_conv(channels: int, width: int, kernel_size: int, *, stride: int = 1) -> StdConv2d:
    return StdConv2d(
        channels,
        width,
        kernel_size,
        stride=stride,
        padding=kernel_size // 2,
        eps=STD_EPS,
        eps_at="variance",
    )


def _check_channels(images: Tensor, channels: int) -> None:
    if images.ndim != 4:
        raise InputError(
            f"images have shape {tuple(images.shape)}; valid: [batch, {channels}, H, W]"
        )
    if images.shape[1] != channels:
        raise InputError(f"images have {images.shape[1]} channels; the model takes {channels}")
