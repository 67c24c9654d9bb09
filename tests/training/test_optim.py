"""Every parameter is updated once, and decays only where it should."""

import pytest
import torch
from torch import nn

from vitlab.models.variants import create_model
from vitlab.training.config import OptimizerConfig
from vitlab.training.muon import Muon
from vitlab.training.optim import build_optimizers, optimizer_flops


@pytest.mark.parametrize("name", ["adamw", "muon", "sgd"])
@pytest.mark.parametrize("model", ["vit_test", "vit_cifar_hybrid", "cnn_tutorial"])
def test_every_parameter_has_one_group(name: str, model: str) -> None:
    built = create_model(model)
    groups = [
        g for o in build_optimizers(built, OptimizerConfig(name=name)) for g in o.param_groups
    ]
    found = [id(p) for group in groups for p in group["params"]]
    assert sorted(found) == sorted(id(p) for p in built.parameters())


@pytest.mark.parametrize("position", ["relative", "relative_bias", "conditional"])
def test_decay_is_for_weights_alone(position: str) -> None:
    model = create_model(
        "vit_test", registers=2, layer_scale=0.1, pool="map", attention="lsa", position=position
    )
    config = OptimizerConfig(name="adamw", weight_decay=0.3)
    [optimizer] = build_optimizers(model, config)
    names = {id(p): name for name, p in model.named_parameters()}
    decayed = {
        names[id(p)]
        for group in optimizer.param_groups
        if group["weight_decay"]
        for p in group["params"]
    }
    assert "stem.proj.weight" in decayed
    assert "head.weight" in decayed
    assert "encoder.blocks.0.attention.qkv.weight" in decayed
    assert {name.rsplit(".", 1)[-1] for name in decayed} == {"weight"}
    assert not any("norm" in name or "positions" in name for name in decayed)


def test_conditional_positions_are_neither_decayed_nor_orthogonalised() -> None:
    model = create_model("vit_test", position="conditional")
    config = OptimizerConfig(name="muon", muon_for="all", weight_decay=0.3)
    muon, adamw = build_optimizers(model, config)
    kernel = model.positions[0].conv.weight
    assert not any(p is kernel for p in muon.param_groups[0]["params"])
    [decay] = [
        group["weight_decay"]
        for group in adamw.param_groups
        if any(p is kernel for p in group["params"])
    ]
    assert decay == 0.0


def test_muon_takes_the_matrices_of_the_encoder() -> None:
    model = create_model("vit_test")
    muon, adamw = build_optimizers(model, OptimizerConfig(name="muon", muon_lr=0.5, lr=0.25))
    assert isinstance(muon, Muon)
    assert len(muon.param_groups[0]["params"]) == 2 * 4
    assert {group["lr"] for group in adamw.param_groups} == {0.25}
    fused = model.encoder.blocks[0].attention.qkv.weight
    assert muon.matrices[id(fused)] == 3
    assert optimizer_flops(model, OptimizerConfig(name="muon")) > 0
    assert optimizer_flops(model, OptimizerConfig(name="adamw")) == 0


def test_muon_for_all_takes_the_convolutions_too() -> None:
    model = create_model("vit_test", stem="conv", conv_strides=(2, 4), conv_widths=(5,))
    encoder, everything = (
        OptimizerConfig(name="muon", muon_for=kind) for kind in ("encoder", "all")
    )
    names = {id(p): name for name, p in model.named_parameters()}
    found = [
        {names[id(p)] for p in build_optimizers(model, config)[0].param_groups[0]["params"]}
        for config in (encoder, everything)
    ]
    convolutions = {"stem.convs.0.conv.weight", "stem.convs.1.conv.weight"}
    assert found[1] - found[0] == convolutions
    assert found[0] <= found[1]
    # Five iterations of 4 s² l + 2 s³ each: kernels are 5 x (3·9) and 32 x (5·9).
    extra = 5 * (4 * 5 * 5 * 27 + 2 * 5**3) + 5 * (4 * 32 * 32 * 45 + 2 * 32**3)
    assert optimizer_flops(model, everything) == optimizer_flops(model, encoder) + extra
    patches = create_model("vit_test")
    muon, rest = build_optimizers(patches, everything)
    assert any(p is patches.stem.proj.weight for p in muon.param_groups[0]["params"])
    assert any(p is patches.stem.proj.bias for g in rest.param_groups for p in g["params"])


def test_depthwise_kernels_stay_with_adamw() -> None:
    model = nn.Sequential(nn.Conv2d(6, 6, 3, groups=6), nn.Conv2d(6, 4, 3, groups=2))
    model.append(nn.Conv2d(4, 5, 3))
    muon, adamw = build_optimizers(model, OptimizerConfig(name="muon", muon_for="all"))
    assert [id(p) for p in muon.param_groups[0]["params"]] == [id(model[2].weight)]
    kept = {id(p) for group in adamw.param_groups for p in group["params"]}
    assert {id(model[0].weight), id(model[1].weight), id(model[2].bias)} <= kept


def test_a_kernel_is_updated_as_the_matrix_of_its_filters() -> None:
    torch.manual_seed(0)
    layer = nn.Conv2d(3, 7, (5, 2))
    config = OptimizerConfig(name="muon", muon_for="all", muon_lr=0.1, weight_decay=0.2)
    before, gradient = layer.weight.detach().double(), torch.randn_like(layer.weight)
    # The layout that gradients have in a model whose images are channels-last.
    layer.weight.grad = gradient.contiguous(memory_format=torch.channels_last)
    build_optimizers(layer, config)[0].step()
    matrix = gradient.double().reshape(7, 30)
    u, s, v = torch.linalg.svd(matrix, full_matrices=False)
    values = s / s.norm()
    for _ in range(5):
        values = 3.4445 * values - 4.7750 * values**3 + 2.0315 * values**5
    expected = before * (1 - 0.1 * 0.2) - 0.1 * (u * values @ v).reshape(7, 3, 5, 2)
    # The iteration runs in float32 and amplifies its rounding.
    torch.testing.assert_close(layer.weight.detach().double(), expected, atol=1e-5, rtol=0.0)


def test_adamw_agrees_with_its_definition() -> None:
    torch.manual_seed(0)
    model = create_model("cnn_tutorial").double()
    config = OptimizerConfig(name="adamw", lr=0.1, weight_decay=0.2, betas=(0.8, 0.9))
    [optimizer] = build_optimizers(model, config)
    weight, bias = model.fc1.weight, model.fc1.bias
    before = weight.detach().clone(), bias.detach().clone()
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 0.5)
    optimizer.step()
    # After one step, bias correction makes m / sqrt(v) the sign of the gradient.
    torch.testing.assert_close(weight.detach(), before[0] * (1 - 0.1 * 0.2) - 0.1)
    torch.testing.assert_close(bias.detach(), before[1] - 0.1)


def test_sgd_decays_apart_from_its_momentum() -> None:
    model = nn.Linear(3, 2)
    config = OptimizerConfig(name="sgd", lr=0.1, momentum=0.9, weight_decay=0.5)
    [optimizer] = build_optimizers(model, config)
    weight, bias = (p.detach().clone() for p in model.parameters())
    momentum = torch.zeros_like(weight)
    for step in range(3):
        gradient = torch.full_like(weight, 1.0 + step)
        model.weight.grad, model.bias.grad = gradient.clone(), torch.zeros_like(bias)
        optimizer.step()
        momentum = 0.9 * momentum + gradient if step else gradient
        weight = weight * (1 - 0.1 * 0.5) - 0.1 * momentum
    torch.testing.assert_close(model.weight.detach(), weight)
    assert torch.equal(model.bias.detach(), bias)
