"""The first layer from the images: against NumPy, refused where it has no place, and resumed."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from runs import same, train_until
from vitlab.data.datasets import open_data
from vitlab.errors import ConfigError
from vitlab.images.preprocessing import Preprocessing
from vitlab.jobs.train import train
from vitlab.models.variants import create_model
from vitlab.models.vit import VisionTransformer
from vitlab.training.config import TrainConfig
from vitlab.training.trainable import prepare_learning, set_learning
from vitlab.training.whiten import first_layer, start_white, whiten
from vitlab.weights.load import load_weights

Array = NDArray[np.float64]
CONV: dict[str, Any] = {"stem": "conv", "conv_strides": (2, 4), "conv_downsample": "pool"}


def patches_of(images: Array, kernel: tuple[int, int], stride: int) -> Array:
    """Every window [C, kh, kw] inside the images, flattened, one by one."""
    height, width = images.shape[2] - kernel[0] + 1, images.shape[3] - kernel[1] + 1
    return np.array(
        [
            image[:, y : y + kernel[0], x : x + kernel[1]].flatten()
            for image in images
            for y in range(0, height, stride)
            for x in range(0, width, stride)
        ]
    )


def plain_filters(patches: Array) -> Array:
    """Principal directions by singular values, over sqrt(variance + 5e-4)."""
    centred = patches - patches.mean(axis=0)
    _, singular, directions = np.linalg.svd(centred, full_matrices=False)
    variance = singular**2 / len(patches)
    filters = directions / np.sqrt(variance + 5e-4)[:, None]
    signs = [np.sign(row[np.abs(row).argmax()]) for row in directions]
    return filters * np.array(signs)[:, None]


def smooth_images(count: int, channels: int, size: tuple[int, int]) -> Tensor:
    """Noise that changes slowly, brighter than zero: neighbouring pixels are alike."""
    noise = torch.randn(count, channels, *size, generator=torch.Generator().manual_seed(0))
    return noise.cumsum(2).cumsum(3) / 3 + 1


@pytest.mark.parametrize(
    ("changes", "kernel", "stride", "directions", "paired"),
    [
        # Fewer filters than directions, more, and more than twice as many.
        ({**CONV, "conv_widths": (11,)}, (3, 3), 1, 5, True),
        ({**CONV, "conv_widths": (41,)}, (3, 3), 1, 20, True),
        ({**CONV, "conv_widths": (61,)}, (3, 3), 1, 27, True),
        ({**CONV, "conv_widths": (61,), "conv_downsample": "stride"}, (3, 3), 2, 27, True),
        ({"patch_size": 2, "width": 30, "image_size": (8, 12)}, (2, 2), 2, 12, False),
        ({"patch_size": 2, "width": 10, "image_size": (8, 12)}, (2, 2), 2, 10, False),
    ],
)
def test_filters_match_the_definition(
    changes: dict[str, Any], kernel: tuple[int, int], stride: int, directions: int, paired: bool
) -> None:
    torch.manual_seed(0)
    model = create_model("vit_test", **changes)
    layer = first_layer(model)
    before = layer.weight.detach().clone()
    images = smooth_images(7, 3, (8, 12))
    whiten(layer, images.split(3), paired=paired)
    expected = plain_filters(patches_of(images.double().numpy(), kernel, stride))[:directions]
    expected = np.concatenate([expected, -expected]) if paired else expected
    count = len(expected)
    found = layer.weight.detach()
    # The layer is float32; the filters are as large as 1 / sqrt(5e-4) = 45.
    torch.testing.assert_close(
        found[:count].flatten(1), torch.from_numpy(expected).float(), atol=1e-3, rtol=1e-4
    )
    assert torch.equal(found[count:], before[count:])


def test_answers_are_white() -> None:
    model = create_model("vit_test", **CONV, conv_widths=(27,)).double()
    layer = first_layer(model)
    images = smooth_images(31, 3, (16, 16)).double()
    whiten(layer, [images], paired=False)
    answers = torch.nn.functional.conv2d(images, layer.weight).movedim(1, 0).flatten(1)
    found = torch.cov(answers.detach(), correction=0)
    assert (found - torch.diag(found.diagonal())).abs().max() < 1e-6
    # variance / (variance + 5e-4)
    assert found.diagonal().max() <= 1.0
    assert found.diagonal()[0] > 0.99


@pytest.mark.parametrize(
    ("name", "changes", "found"),
    [
        ("vit_test", {"stem": "shifted"}, "VisionTransformer with ShiftedPatchEmbed has none"),
        ("vit_test", {"stem": "resnet", "patch_size": 1}, "VisionTransformer with HybridEmbed"),
        ("vit_test", {"patch_norm": "both"}, "VisionTransformer with PatchEmbed has none"),
        ("cnn_tutorial", {}, "TutorialCNN has none; valid: a vit_… model with stem 'conv'"),
    ],
)
def test_models_without_such_a_layer_are_refused(
    name: str, changes: dict[str, Any], found: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as error:
        first_layer(create_model(name, **changes))
    assert found in str(error.value)
    wanted = {"model": name, "changes": changes, "whiten": 5, "budget": 1.0, "budget_in": "steps"}
    with pytest.raises(ConfigError, match="whiten needs a first layer"):
        train(data="sample", out=tmp_path / "run", changes=wanted)
    assert not (tmp_path / "run").exists()


def test_settings_are_checked() -> None:
    with pytest.raises(ConfigError, match="whiten -1 is negative"):
        TrainConfig(whiten=-1)
    with pytest.raises(ConfigError, match="whiten_frozen needs whiten > 0"):
        TrainConfig(whiten_frozen=True)


def test_images_are_drawn_prepared_and_not_augmented() -> None:
    source = open_data("sample")
    images = source.open_train()
    preparation = Preprocessing(size=(32, 32), mean=source.mean, std=source.std)
    weights = []
    for seed, count in ((0, 5), (0, 5), (1, 5), (0, 10**6), (1, 10**6)):
        torch.manual_seed(0)
        model = create_model("vit_test", **CONV)
        start_white(model, images, TrainConfig(seed=seed, whiten=count), preparation)
        assert isinstance(model, VisionTransformer)
        weights.append(first_layer(model).weight.detach()[:27])
    assert torch.equal(weights[0], weights[1])
    assert not torch.allclose(weights[0], weights[2])
    # All the images, in another order: the sums round differently.
    torch.testing.assert_close(weights[3], weights[4], atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize(
    ("changes", "kept"), [(CONV, "stem.convs.0.conv.weight"), ({}, "stem.proj.weight")]
)
def test_a_frozen_layer_never_learns(changes: dict[str, Any], kept: str) -> None:
    model = create_model("vit_test", **changes)
    names = {name for name, _ in model.named_parameters()}
    for frozen in (False, True):
        config = TrainConfig(whiten=3, whiten_frozen=frozen, head_first=0.1)
        expected = names - {kept} if frozen else names
        prepare_learning(model, config)
        assert {n for n, p in model.named_parameters() if p.requires_grad} == expected
        set_learning(model, config, 50, 100)
        assert {n for n, p in model.named_parameters() if p.requires_grad} == expected


CHANGES: dict[str, Any] = {
    "model": "vit_test",
    "changes": CONV,
    "batch_size": 16,
    "budget": 6.0,
    "budget_in": "steps",
    "ema": 0.9,
    "evaluations": 1,
    "checkpoint_every": 3,
    "optimizer.name": "muon",
    "optimizer.muon_for": "all",
    "whiten": 20,
}


@pytest.mark.parametrize("frozen", [False, True])
def test_resuming_equals_never_stopping(frozen: bool, tmp_path: Path) -> None:
    changes = {**CHANGES, "whiten_frozen": frozen}
    whole = train(data="sample", out=tmp_path / "whole", changes=changes).folder
    part = tmp_path / "part"
    train_until(2, data="sample", out=part, changes=changes)  # before any checkpoint
    train_until(5, out=part, resume=True)
    run = train(out=part, resume=True)
    assert same(part, whole)
    learnt = first_layer(load_weights(run.bundle)).weight.detach()[:27].flatten(1)
    # Whitening filters are orthogonal to each other, and stay so where nothing learns.
    inner = learnt @ learnt.T
    across = inner - torch.diag(inner.diagonal())
    assert (across.abs().max() < 1e-3) == frozen
