"""Images to a grid of tokens: patches cut out one by one, flattened and projected."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reference import resnet
from reference.layers import gelu, layer_norm

Array = NDArray[np.float64]
Size = tuple[int, int]


def patch_embed(
    image: Array, p: Mapping[str, Array], *, patch: Size, eps: float, kind: str = "layer"
) -> Array:
    """x_p E of equation 1 for an image [C, H, W]: [h, w, D]; norms where `p` has them."""
    channels, height, width = image.shape
    kernel = p["proj.weight"]  # [D, C, Ph, Pw]
    tokens = np.empty((height // patch[0], width // patch[1], len(kernel)))
    for row in range(height // patch[0]):
        for column in range(width // patch[1]):
            vector = [
                image[c, row * patch[0] + y, column * patch[1] + x]
                for c in range(channels)
                for y in range(patch[0])
                for x in range(patch[1])
            ]
            flat = np.array(vector)
            if "norm_before.weight" in p:
                flat = layer_norm(flat, p, "norm_before", eps, kind)
            for d, filters in enumerate(kernel):
                tokens[row, column, d] = filters.flatten() @ flat
    tokens += p.get("proj.bias", 0.0)
    return layer_norm(tokens, p, "norm_after", eps, kind) if "norm_after.weight" in p else tokens


def shifted(image: Array, patch: Size) -> Array:
    """SPT (arXiv:2112.13492, section 3.1): the image and what lies half a patch from each pixel.

    In the order of its authors: to the upper left, upper right, lower left, lower right.
    """
    channels, height, width = image.shape
    half = (patch[0] // 2, patch[1] // 2)
    result = np.zeros((5 * channels, height, width))
    result[:channels] = image
    for number, (vertical, horizontal) in enumerate([(-1, -1), (-1, 1), (1, -1), (1, 1)], start=1):
        for y in range(height):
            for x in range(width):
                at = (y + vertical * half[0], x + horizontal * half[1])
                if 0 <= at[0] < height and 0 <= at[1] < width:
                    result[number * channels : (number + 1) * channels, y, x] = image[
                        :, at[0], at[1]
                    ]
    return result


def conv_tokens(
    image: Array, p: Mapping[str, Array], *, strides: tuple[int, ...], pooled: str, activation: str
) -> Array:
    """CCT's tokenizer (arXiv:2104.05704): 3x3 convolutions, each with activation and max-pool.

    `pooled` is "after" the activation, 3x3, or "before" the norm, in squares of the stride; where
    it is empty, the convolution takes the stride itself.
    """
    border = ((1, 1), (1, 1))
    x = image[None]
    for i, stride in enumerate(strides):
        x = resnet.conv(x, p[f"convs.{i}.conv.weight"], stride=1 if pooled else stride, pads=border)
        if pooled == "before" and stride > 1:
            x = resnet.max_pool(x, stride, stride)
        if f"convs.{i}.norm.weight" in p:
            x = resnet.batch_norm(x, p, f"convs.{i}.norm")
        x = np.maximum(x, 0.0) if activation == "relu" else gelu(x, "erf")
        if pooled == "after" and stride > 1:
            x = resnet.max_pool(resnet.pad(x, border, -np.inf), 3, stride)
    return x[0].transpose(1, 2, 0)


def stem(image: Array, p: Mapping[str, Array], config: Mapping[str, Any]) -> Array:
    """The grid of tokens [h, w, D] of one image, by `config["stem"]`."""
    size, eps = config["patch_size"], config["norm_eps"]
    patch = (size, size) if isinstance(size, int) else size
    if config["stem"] == "shifted":
        image = shifted(image, patch)
    elif config["stem"] == "resnet":
        image = resnet.trunk(
            resnet.under(p, "resnet."),
            image[None],
            layers=config["resnet_layers"],
            norm_eps=config["resnet_norm_eps"],
            std_eps=config["resnet_std_eps"],
            std_eps_at=config["resnet_std_eps_at"],
        )[0]
    elif config["stem"] == "conv":
        tokens = conv_tokens(
            image,
            p,
            strides=config["conv_strides"],
            pooled=config["conv_pool_at"] if config["conv_downsample"] == "pool" else "",
            activation=config["conv_activation"],
        )
        return layer_norm(tokens, p, "norm_after", eps) if "norm_after.weight" in p else tokens
    return patch_embed(image, p, patch=patch, eps=eps, kind=config["norm_kind"])
