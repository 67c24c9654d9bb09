"""What a CNN and a ViT see by depth."""

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from reference.random_weights import randomise
from vitlab.models.cnn import ResNet
from vitlab.models.variants import create_model

sys.path.append(str(Path(__file__).resolve().parents[1] / "benchmarks"))
cnn_and_vit: Any = importlib.import_module("cnn_and_vit")


def small(name: str, **changes: Any) -> torch.nn.Module:
    torch.manual_seed(0)
    model = create_model(name, **changes).eval()
    randomise(model)
    return model


def test_the_field_of_a_unit_is_where_its_gradient_is_not_zero() -> None:
    model = small("resnet18_cifar", width=3, layers=(1, 1, 1), image_size=64)
    assert isinstance(model, ResNet)
    assert cnn_and_vit.fields(model) == [7, 13, 25]
    for part, side in zip(cnn_and_vit.parts(model), cnn_and_vit.fields(model), strict=True):
        # In float64 no gradient underflows; negative slopes keep every path open.
        images = torch.randn(5, 3, 64, 64, dtype=torch.float64, requires_grad=True)
        found = part.model.double() and part(images)
        rows = found.shape[1]
        (gradient,) = torch.autograd.grad(found[:, rows // 2, rows // 2].sum(), images)
        seen = gradient.abs().sum((0, 1)).nonzero()
        assert (seen.max(0).values - seen.min(0).values + 1).tolist() == [side, side]


def test_the_distance_is_weighted_by_the_gradient() -> None:
    class Shifted:
        """A unit is the pixel three rows below and four columns to the right of its place."""

        def __call__(self, images: Tensor) -> Tensor:
            return images.roll((-3, -4), (2, 3)).permute(0, 2, 3, 1)

    images = torch.randn(2, 3, 16, 16)
    assert cnn_and_vit.gradient_distance(images, Shifted()) == pytest.approx(5.0)


def test_a_mean_over_all_tokens_looks_as_far_as_it_can() -> None:
    model = small("vit_test", attention="mean", class_token=False, pool="mean", position="none")
    (first, second) = cnn_and_vit.attention_distances(model, torch.randn(2, 3, 32, 32))
    places = torch.cartesian_prod(*[torch.arange(4.0) * 8] * 2)
    expected = float((places[:, None] - places).norm(dim=-1).mean())
    assert first + second == pytest.approx([expected] * 4, rel=1e-5)


def test_numbers_of_the_experiment_and_the_figure() -> None:
    known = json.loads(cnn_and_vit.RESULTS.read_text())
    cnn, vit = cnn_and_vit.told(known, "cnn"), cnn_and_vit.told(known, "vit")
    assert cnn["accuracy"].keys() == vit["accuracy"].keys() == {"2", "10", "30", "100"}
    assert cnn["accuracy"]["2"][0] > vit["accuracy"]["2"][0]
    seen: dict[str, Any] = {"gradient_distance": [1.0, 2.0]}
    found = {
        "CNN": cnn | seen | {"field": [7, 40]},
        "ViT": vit | seen | {"attention_distance": [[3.0], [4.0]]},
    }
    left, right = cnn_and_vit.draw(found).axes
    assert [len(axes.get_legend().get_texts()) for axes in (left, right)] == [4, 2]


def test_both_are_measured_before_training() -> None:
    images = cnn_and_vit.some_images("sample")
    resnet, vit = cnn_and_vit.fresh()
    found = cnn_and_vit.measured(resnet.eval(), images)
    assert found["field"] == [7, 11, 17, 25, 37, 53, 77, 109]
    assert len(found["gradient_distance"]) == 8
    assert found["bytes_of_an_update"] > 50 * images.nbytes
    assert (found["parameters"], cnn_and_vit.cost(vit).flops) == (701466, 64589184)
