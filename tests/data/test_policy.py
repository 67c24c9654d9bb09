"""TrivialAugment and RandAugment: their tables against the originals', their draws as stated."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from reference.torchvision_ops import declare
from vitlab.data.augment.config import MAGNITUDES, AugmentConfig
from vitlab.data.augment.draws import draw
from vitlab.data.augment.policies import OPERATIONS, SPACES, apply_policy

H, W = 17, 13
NAMES = {
    "identity": "Identity",
    "shear_x": "ShearX",
    "shear_y": "ShearY",
    "translate_x": "TranslateX",
    "translate_y": "TranslateY",
    "rotate": "Rotate",
    "brightness": "Brightness",
    "color": "Color",
    "contrast": "Contrast",
    "sharpness": "Sharpness",
    "posterize": "Posterize",
    "solarize": "Solarize",
    "auto_contrast": "AutoContrast",
    "equalize": "Equalize",
}


def torchvisions(policy: str) -> dict[str, tuple[Any, bool]]:
    declare()
    transforms = pytest.importorskip("torchvision.transforms")
    if policy == "trivial":
        return transforms.TrivialAugmentWide()._augmentation_space(MAGNITUDES)
    return transforms.RandAugment()._augmentation_space(MAGNITUDES, (W, W))


@pytest.mark.parametrize("policy", ["trivial", "randaugment"])
def test_strengths_are_torchvisions(policy: str) -> None:
    theirs = torchvisions(policy)
    assert set(SPACES[policy]) == set(NAMES)
    assert set(theirs) == set(NAMES.values())
    share = torch.arange(MAGNITUDES) / (MAGNITUDES - 1)
    for name, strengths in SPACES[policy].items():
        magnitudes, signed = theirs[NAMES[name]]
        assert signed == strengths.signed
        if magnitudes.ndim == 0:
            continue
        ours = strengths.at(share, torch.ones(MAGNITUDES), W)
        if name in ("brightness", "color", "contrast", "sharpness"):
            ours = ours - 1
        if name == "posterize":
            ours = ours.round()
        # Both are float32, computed in another order: two roundings of numbers up to 255.
        torch.testing.assert_close(ours, magnitudes.float(), rtol=1e-6, atol=3e-5)


def outcomes(image: Tensor, policy: str, magnitudes: range) -> Tensor:
    """Everything that one operation can make of an image [C, H, W]."""
    share = torch.tensor([*magnitudes, *magnitudes]) / (MAGNITUDES - 1)
    sign = torch.ones_like(share)
    sign[: len(magnitudes)] = -1
    copies = image.expand(len(share), -1, -1, -1)
    results = [
        OPERATIONS[name](copies, strengths.at(share, sign, image.shape[-1]))
        for name, strengths in SPACES[policy].items()
    ]
    return torch.cat(results).unique(dim=0)


def noise(count: int) -> Tensor:
    draw = np.random.default_rng(0)
    return torch.from_numpy(draw.integers(0, 256, (count, 3, H, W), dtype=np.uint8))


def stands_in(image: Tensor, many: Tensor) -> bool:
    return bool((many == image).flatten(1).all(dim=1).any())


def test_trivial_applies_one_operation_to_each_image() -> None:
    images = noise(40)
    config = AugmentConfig(policy="trivial")
    draws = draw(config, len(images), torch.Generator().manual_seed(3))
    results = apply_policy(images, config, draws)
    for image, result in zip(images, results, strict=True):
        assert stands_in(result, outcomes(image, "trivial", range(MAGNITUDES)))


def test_randaugment_applies_as_many_as_asked_at_one_magnitude() -> None:
    images = noise(6)
    config = AugmentConfig(policy="randaugment", policy_ops=2, policy_magnitude=17)
    draws = draw(config, len(images), torch.Generator().manual_seed(3))
    results = apply_policy(images, config, draws)
    for image, result in zip(images, results, strict=True):
        once = outcomes(image, "randaugment", range(17, 18))
        twice = [outcomes(each, "randaugment", range(17, 18)) for each in once]
        assert stands_in(result, torch.cat(twice))


def test_operations_strengths_and_signs_are_drawn_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: dict[str, list[float]] = {}

    def note(name: str) -> Any:
        def operation(images: Tensor, strength: Tensor) -> Tensor:
            drawn.setdefault(name, []).extend(strength.tolist())
            return images

        return operation

    monkeypatch.setattr(
        "vitlab.data.augment.policies.OPERATIONS", {name: note(name) for name in OPERATIONS}
    )
    images = torch.zeros(14_000, 1, 1, 1, dtype=torch.uint8)
    config = AugmentConfig(policy="trivial")
    apply_policy(images, config, draw(config, len(images), torch.Generator().manual_seed(0)))
    assert set(drawn) == set(OPERATIONS)
    # Binomial with mean 1000 and deviation 31: five of them on either side.
    assert all(845 < len(strengths) < 1155 for strengths in drawn.values())
    angles = torch.tensor(drawn["rotate"])
    assert len(angles.abs().unique()) == MAGNITUDES
    assert 0.4 < (angles[angles != 0] > 0).float().mean() < 0.6
