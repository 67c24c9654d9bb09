"""The CNN baselines: exact sizes, their definitions, and timm's BiT."""

import importlib
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from reference import resnet as plain
from reference.torchvision_ops import declare
from vitlab.config import from_dict, to_dict
from vitlab.errors import ConfigError, InputError, UnknownName
from vitlab.models.cnn import ResNet, TutorialCNN
from vitlab.models.variants import ResNetConfig, TutorialCNNConfig

CIFAR = ResNetConfig(family="cifar", layers=(2, 2, 2, 2), image_size=32, classes=10)
BIT = ResNetConfig(family="bit", layers=(3, 4, 6, 3))
# A different prime for every axis.
B, C, H, W, CLASSES = 2, 5, 29, 23, 11


def randomise(module: nn.Module) -> None:
    """Draw what starts as zeros or ones, so that neither hides a mistake."""
    with torch.no_grad():
        for value in module.state_dict().values():
            if value.is_floating_point():
                value.copy_(torch.rand_like(value) + 0.3 if value.ndim == 1 else value)


def images(channels: int = C, height: int = H, width: int = W) -> Tensor:
    return torch.randn(B, channels, height, width, dtype=torch.float64)


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (lambda: TutorialCNN(TutorialCNNConfig()), 62_006),
        (lambda: ResNet(CIFAR), 11_173_962),
        (lambda: ResNet(BIT), 25_549_352),
    ],
    ids=["tutorial", "cifar", "bit"],
)
def test_number_of_parameters(model: Any, expected: int) -> None:
    with torch.device("meta"):
        assert sum(parameter.numel() for parameter in model().parameters()) == expected


def test_tutorial_network_matches_the_definition() -> None:
    torch.manual_seed(0)
    config = TutorialCNNConfig(image_size=(H, W), channels=C, classes=CLASSES)
    model = TutorialCNN(config).double().eval()
    x = images()
    with torch.no_grad():
        logits = model(x).numpy()
    np.testing.assert_allclose(logits, plain.tutorial(plain.parameters(model), x.numpy()))


def test_cifar_resnet_matches_the_definition() -> None:
    torch.manual_seed(0)
    config = ResNetConfig(family="cifar", layers=(1, 2, 1), width=7, channels=C, classes=CLASSES)
    model = ResNet(config).double().eval()
    randomise(model)
    x = images()
    with torch.no_grad():
        logits = model(x).numpy()
    expected = plain.cifar_resnet(plain.parameters(model), x.numpy(), config.layers)
    np.testing.assert_allclose(logits, expected)


def from_timm(state: dict[str, Tensor]) -> dict[str, Tensor]:
    names = {
        "stem.": "root.",
        ".blocks.": ".",
        "downsample.conv": "conv_proj",
        "head.fc": "head",
    }
    converted = {}
    for name, value in state.items():
        flat = value.flatten(1) if name == "head.fc.weight" else value
        for theirs, ours in names.items():
            name = name.replace(theirs, ours)
        converted[name] = flat
    return converted


@pytest.mark.parametrize("size", [(64, 64), (67, 97)])
def test_bit_gives_the_logits_of_timm(size: tuple[int, int]) -> None:
    declare()
    timm = importlib.import_module("timm")
    torch.manual_seed(0)
    theirs = timm.create_model("resnetv2_50x1_bit", num_classes=CLASSES).eval()
    randomise(theirs)
    ours = ResNet(ResNetConfig(family="bit", layers=(3, 4, 6, 3), classes=CLASSES)).eval()
    ours.load_state_dict(from_timm(theirs.state_dict()))
    x = images(3, *size).float()
    with torch.no_grad():
        # The project's bound for float32 against another implementation.
        torch.testing.assert_close(ours(x), theirs(x), atol=2e-5, rtol=0)


@pytest.mark.parametrize("family", ["cifar", "bit"])
def test_residual_networks_take_other_sizes_and_go_without_a_head(family: Any) -> None:
    model = ResNet(ResNetConfig(family=family, layers=(1, 1), width=32, channels=C, classes=0))
    representation = 64 if family == "cifar" else 256
    assert model.eval()(images().float()).shape == (B, representation)


def test_every_parameter_learns() -> None:
    torch.manual_seed(0)
    for family in ("cifar", "bit"):
        model = ResNet(ResNetConfig(family=family, layers=(1, 2), width=32, classes=CLASSES))
        model(images(3).float()).square().sum().backward()
        assert all(p.grad is not None and p.grad.abs().max() > 0 for p in model.parameters())


@pytest.mark.usefixtures("no_type_checks")
@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((B, 4, 32, 32), "images have 4 channels; the model takes 3"),
        ((3, 32, 32), r"shape \(3, 32, 32\); valid: \[batch, 3, H, W\]"),
        ((B, 3, 32, 48), r"images are \(32, 48\) .*takes \(32, 32\)"),
    ],
)
def test_wrong_images_are_refused(shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        TutorialCNN(TutorialCNNConfig())(torch.zeros(shape))


def test_residual_networks_refuse_wrong_channels() -> None:
    model = ResNet(ResNetConfig(family="cifar", layers=(1,), width=3))
    with pytest.raises(InputError, match="images have 4 channels; the model takes 3"):
        model(torch.zeros(B, 4, H, W))


@pytest.mark.usefixtures("no_type_checks")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"family": "vgg"}, "unknown family 'vgg'; valid: bit, cifar"),
        ({"layers": ()}, r"layers \(\) needs"),
        ({"layers": (2, 0)}, r"layers \(2, 0\) needs"),
        ({"width": 48}, "width 48 is not a positive multiple of 32"),
        ({"channels": 0}, "channels 0"),
        ({"classes": -1}, "classes -1"),
        ({"image_size": (0, 32)}, r"image_size \(0, 32\)"),
    ],
)
def test_impossible_configs_are_refused(changes: dict[str, Any], message: str) -> None:
    settings: dict[str, Any] = {"family": "bit", "layers": (1,)} | changes
    with pytest.raises((ConfigError, UnknownName), match=message):
        ResNetConfig(**settings)


def test_tutorial_network_needs_sixteen_pixels() -> None:
    with pytest.raises(ConfigError, match=r"image_size \(15, 32\) is not at least 16"):
        TutorialCNNConfig(image_size=(15, 32))
    config = TutorialCNNConfig(image_size=16)
    assert TutorialCNN(config)(torch.zeros(1, 3, 16, 16)).shape == (1, 10)


@pytest.mark.parametrize("config", [CIFAR, BIT, TutorialCNNConfig(image_size=(32, 48))])
def test_configs_survive_json(config: Any) -> None:
    assert from_dict(type(config), to_dict(config)) == config
