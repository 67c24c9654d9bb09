"""Linear CKA: how alike two layers describe the same images (arXiv:1905.00414)."""

import torch
from einops import einsum
from jaxtyping import Float
from torch import Tensor

LEAST_IMAGES = 4
"""Of which the unbiased estimate can be had."""


def linear_cka(layers: Float[Tensor, "L n p"]) -> Float[Tensor, "L L"]:
    """|YᵀX|² / (|XᵀX| |YᵀY|) of centred features, for every two layers.

    With fewer images than features it is too large, also for features that have nothing in common.
    """
    centred = layers.double() - layers.double().mean(dim=1, keepdim=True)
    return _normalised(_inner(centred @ centred.mT))


def unbiased_cka(layers: Float[Tensor, "L n p"]) -> Float[Tensor, "L L"]:
    """The same with the unbiased estimate of HSIC (arXiv:2010.15327, equation 3), n from 4 on.

    Around zero, and also below, for features that have nothing in common.
    """
    x = layers.double()
    n = x.shape[1]
    if n < LEAST_IMAGES:
        raise ValueError(f"{n} images; unbiased CKA needs at least {LEAST_IMAGES}")
    # Constant features change nothing, and centring them keeps the sums below small.
    x = x - x.mean(dim=1, keepdim=True)
    grams = x @ x.mT
    grams.diagonal(dim1=-2, dim2=-1).zero_()
    rows, totals = grams.sum(dim=-1), grams.sum(dim=(-2, -1))
    hsic = (
        _inner(grams)
        + totals[:, None] * totals / ((n - 1) * (n - 2))
        - 2 / (n - 2) * (rows @ rows.T)
    ) / (n * (n - 3))
    return _normalised(hsic)


def _inner(grams: Float[Tensor, "L n n"]) -> Float[Tensor, "L L"]:
    return einsum(grams, grams, "l i j, m i j -> l m")


def _normalised(hsic: Float[Tensor, "L L"]) -> Float[Tensor, "L L"]:
    """NaN for layers in which all images are the same."""
    own = hsic.diagonal()
    size = torch.where(own > 0, own, torch.nan).sqrt()
    return hsic / size[:, None] / size
