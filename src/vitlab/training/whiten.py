"""Whitening filters for the first layer, computed from training images.

The principal directions of the patches, each divided by its deviation: their outputs are
uncorrelated and of one size, whereas raw pixels are nearly copies of their neighbours. If an
activation follows, which keeps one sign, each direction comes with its negative.
"""

from collections.abc import Iterable

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from vitlab.data.images import ImageSet
from vitlab.data.loader import batches_for_evaluation
from vitlab.data.order import generator
from vitlab.errors import ConfigError
from vitlab.images.preprocessing import Preprocessing
from vitlab.models.vit import VisionTransformer
from vitlab.nn.patch_embed import ConvEmbed, ConvStep, PatchEmbed
from vitlab.training.config import TrainConfig

SMALLEST = 5e-4
"""Added to a variance: directions that hardly vary are not blown up."""
WHITENED_AT_ONCE = 32
"""Images whose patches are in memory at the same time."""


def first_layer(model: nn.Module) -> nn.Conv2d:
    """First layer of the model; raise if its input is not the plain pixels."""
    stem = model.stem if isinstance(model, VisionTransformer) else None
    if isinstance(stem, ConvEmbed):
        step = stem.convs[0]
        assert isinstance(step, ConvStep)
        return step.conv
    if type(stem) is PatchEmbed and stem.norm_before is None:
        return stem.proj
    found = f"{type(model).__name__} with {type(stem).__name__}" if stem else type(model).__name__
    raise ConfigError(
        f"whiten needs a first layer that sees the pixels as they are, and {found} has none; "
        f"valid: a vit_… model with stem 'conv', or 'patch' without norm before it"
    )


@torch.no_grad()
def whiten(layer: nn.Conv2d, batches: Iterable[Float[Tensor, "_ C H W"]], *, paired: bool) -> None:
    """Start the layer with the whitening filters of the patches in these images.

    Filters that are left keep what they have; of too many, those of the largest variances stay.
    `paired`: half of the filters, and then their negatives.
    """
    places = len(layer.weight)
    kernels = whitening_filters(covariance(batches, layer))[: places // 2 if paired else places]
    kernels = torch.cat([kernels, -kernels]) if paired else kernels
    layer.weight[: len(kernels)] = kernels.reshape(-1, *layer.weight.shape[1:]).to(layer.weight)


def covariance(
    batches: Iterable[Float[Tensor, "_ C H W"]], layer: nn.Conv2d
) -> Float[Tensor, "P P"]:
    """Of all patches inside the images that are as large as the layer's kernel, by its stride."""
    size = layer.weight[0].numel()
    kernel, stride = layer.weight.shape[2:], layer.stride
    total, product = torch.zeros(size, dtype=torch.float64), torch.zeros(size, size).double()
    count = 0
    for images in batches:
        windows = F.unfold(images.double().cpu(), tuple(kernel), stride=stride)
        patches = rearrange(windows, "b p n -> (b n) p")
        total += patches.sum(dim=0)
        product += patches.T @ patches
        count += len(patches)
    mean = total / count
    return product / count - torch.outer(mean, mean)


def whitening_filters(covariance: Float[Tensor, "P P"]) -> Float[Tensor, "P P"]:
    """Eigenvectors as rows, largest variance first, each divided by its deviation.

    The largest entry of an eigenvector is positive: its sign is no accident of the machine.
    """
    values, vectors = torch.linalg.eigh(covariance)
    values, vectors = values.flip(0).clamp(min=0.0), vectors.flip(1).T
    largest = vectors.gather(1, vectors.abs().argmax(dim=1, keepdim=True))
    return vectors * largest.sign() / (values[:, None] + SMALLEST).sqrt()


def check_whitening(model: nn.Module, config: TrainConfig, weights: str | None) -> None:
    """Raise if the first layer cannot be whitened; `weights`: the run starts from these."""
    first_layer(model)
    if weights is not None:
        raise ConfigError(
            f"whiten {config.whiten} is for a first layer that starts at random, and "
            f"{weights} has trained weights; valid: whiten=0"
        )


def start_white(
    model: nn.Module, images: ImageSet, config: TrainConfig, preprocessing: Preprocessing
) -> None:
    """Whiten the first layer by training images drawn with the seed, all if they are fewer."""
    order = torch.randperm(len(images), generator=generator(config.seed, "whiten"))
    batches = batches_for_evaluation(
        images.subset(order[: config.whiten]),
        batch_size=WHITENED_AT_ONCE,
        preprocessing=preprocessing,
        workers=config.workers,
        broken={},  # reported when the images were opened
    )
    activated = isinstance(model.stem, ConvEmbed)
    whiten(first_layer(model), (batch.images for batch in batches), paired=activated)
