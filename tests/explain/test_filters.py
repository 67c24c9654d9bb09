"""The first filters of every kind of stem: they answer for what the model computes of pixels."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from models.vit_cases import CASES
from reference.random_weights import randomise
from vitlab import VisionTransformer, create_model
from vitlab.errors import Unsupported
from vitlab.explain.weights import Filters, first_filters


def build(name: str) -> VisionTransformer:
    model = VisionTransformer(CASES[name]).double().eval()
    randomise(model)
    return model


def test_components_of_a_patch_embedding() -> None:
    model = build("paper")
    weight = model.stem.proj.weight.detach().numpy().reshape(12, -1)
    centred = weight - weight.mean(axis=0)
    values, vectors = np.linalg.eigh(centred.T @ centred)
    found = first_filters(model, 4)
    assert (found.kind, found.total, found.layer) == ("components", 12, "patch embedding")
    assert found.images.shape == (4, 5, 3, 2)
    for image, vector in zip(found.images.numpy(), vectors[:, ::-1].T, strict=False):
        vector = vector * np.sign(vector[np.abs(vector).argmax()])
        np.testing.assert_allclose(image.ravel(), vector, atol=1e-7)
    np.testing.assert_allclose(found.shares, values[::-1][:4] / values.sum(), rtol=1e-9)


def test_a_shifted_embedding_is_shown_where_it_reads() -> None:
    """A filter over the image alone gives what the five parts give over image and copies."""
    from vitlab.explain.weights import _on_the_image
    from vitlab.nn.patch_embed import with_shifts

    model: Any = build("shifted")
    weight, patch = model.stem.proj.weight.detach(), model.stem.patch_size  # 4 x 3
    whole = _on_the_image(weight, patch)
    assert whole.shape == (12, 5, 4 + 2 * 2, 3 + 2 * 1)
    images = torch.randn(2, 5, 12, 15, dtype=torch.float64)
    expected = F.conv2d(with_shifts(images, patch), weight, stride=patch)
    found = F.conv2d(F.pad(images, (1, 1, 2, 2)), whole, stride=patch)
    torch.testing.assert_close(found, expected)
    shown = first_filters(model, 3)
    assert (shown.layer, shown.images.shape) == ("shifted patch embedding", (3, 5, 8, 5))


def test_of_a_convolution_the_strongest_filters() -> None:
    model = build("conv")
    weight = model.stem.convs[0].conv.weight.detach().numpy()  # [7, 5, 3, 3]
    order = sorted(range(7), key=lambda row: -np.linalg.norm(weight[row]))
    found = first_filters(model, 6)
    assert (found.kind, found.layer, found.total) == ("filters", "first convolution", 7)
    assert found.shares is None
    np.testing.assert_array_equal(found.images, weight[order[:6]])


def test_a_hybrid_shows_the_filters_that_it_applies() -> None:
    model = build("hybrid_root")
    weight = model.stem.resnet.root.conv.weight.detach().numpy()  # [32, 5, 7, 7]
    mean, std = (f(weight, axis=(1, 2, 3), keepdims=True) for f in (np.mean, np.std))
    found = first_filters(model, 32)
    # Their sizes are nearly equal by construction, so the order is rounding.
    rows, expected = (
        np.array(sorted(images.reshape(32, -1).tolist()))
        for images in (found.images.numpy(), (weight - mean) / (std + 1e-5))
    )
    np.testing.assert_allclose(rows, expected, atol=1e-12)


def test_a_convolutional_network_has_first_filters_too() -> None:
    found: Filters = first_filters(create_model("cnn_tutorial"), 5)
    assert (found.kind, len(found.images), found.images.shape[1]) == ("filters", 5, 3)


def test_a_model_that_reads_pixels_otherwise_says_so() -> None:
    with pytest.raises(
        Unsupported, match="filters: the model has no convolution or patch embedding"
    ):
        first_filters(nn.Linear(3, 2), 4)
