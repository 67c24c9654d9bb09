"""Linear layers, LayerNorm and the MLP of a block as plain formulas in float64."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from vitlab.models.config import ViTConfig
from vitlab.nn.encoder import EncoderBlock, LayerScale
from vitlab.nn.lora import LoraLinear
from vitlab.nn.mlp import QUICK, Mlp


@dataclass(frozen=True, kw_only=True, eq=False)
class Linear:
    """x Wᵀ + b."""

    weight: Float[Tensor, "O I"]
    bias: Float[Tensor, " O"] | None

    def __call__(self, x: Float[Tensor, "*N I"]) -> Float[Tensor, "*N O"]:
        y = x @ self.weight.T
        return y if self.bias is None else y + self.bias


@dataclass(frozen=True, kw_only=True, eq=False)
class MlpSteps:
    """The second half of a block: every token through two linear layers, then added."""

    read: Float[Tensor, "N D"]
    """Input of the MLP: the tokens after a LayerNorm."""
    widen: Linear
    wide: Float[Tensor, "N F"]
    """Output of the first layer."""
    active: Float[Tensor, "N F"]
    """That output after the activation."""
    narrow: Linear
    output: Float[Tensor, "N D"]
    leaving: Float[Tensor, "N D"]
    """Output of the block."""
    own: Float[Tensor, "N D"]
    """Output of the model's own block, to compare with `leaving`."""


def follow_mlp(
    block: EncoderBlock, config: ViTConfig, tokens: Float[Tensor, "N D"], own: Float[Tensor, "N D"]
) -> MlpSteps:
    """Second half of a block for tokens to which its attention has been added."""
    mlp = block.mlp
    assert isinstance(mlp, Mlp)
    assert isinstance(block.norm2, nn.LayerNorm)
    read = layer_norm(tokens, block.norm2)
    widen, narrow = (linear_of(*merged(layer)) for layer in (mlp.fc1, mlp.fc2))
    wide = widen(read)
    active = activated(wide, config)
    output = narrow(active)
    return MlpSteps(
        read=read,
        widen=widen,
        wide=wide,
        active=active,
        narrow=narrow,
        output=output,
        leaving=tokens + branch(output, block.scale2),
        own=double(own),
    )


def activated(x: Float[Tensor, "N F"], config: ViTConfig) -> Float[Tensor, "N F"]:
    """The activation of the MLP, by its definition."""
    if config.mlp_activation == "relu2":
        return x.clamp(min=0).square()
    if config.gelu == "quick":
        return x * torch.sigmoid(QUICK * x)
    if config.gelu == "tanh":
        return F.gelu(x, approximate="tanh")
    return x * (1 + torch.erf(x / 2**0.5)) / 2


def branch(y: Float[Tensor, "N D"], scale: nn.Module | None) -> Float[Tensor, "N D"]:
    """Contribution of attention or MLP to the tokens: scaled or normalised, if the model does."""
    if isinstance(scale, LayerScale):
        return double(scale.gamma) * y
    return layer_norm(y, scale) if isinstance(scale, nn.LayerNorm) else y


def layer_norm(x: Float[Tensor, "*N D"], norm: nn.LayerNorm) -> Float[Tensor, "*N D"]:
    """Each row minus its mean, over its deviation, times a gain, plus a bias if it has one."""
    centred = x - x.mean(dim=-1, keepdim=True)
    variance = centred.square().mean(dim=-1, keepdim=True)
    scaled = centred / (variance + norm.eps).sqrt() * double(norm.weight)
    return scaled if norm.bias is None else scaled + double(norm.bias)


def merged(layer: nn.Linear) -> tuple[Tensor, Tensor | None]:
    """Effective weight and bias of a layer, including a low-rank update."""
    plain = layer.merged() if isinstance(layer, LoraLinear) else layer
    return plain.weight, plain.bias


def linear_of(weight: Tensor, bias: Tensor | None) -> Linear:
    """A linear layer of these tensors, in float64."""
    return Linear(weight=double(weight), bias=None if bias is None else double(bias))


def double(tensor: Tensor) -> Tensor:
    """A detached copy on the CPU in float64."""
    return tensor.detach().cpu().double()
