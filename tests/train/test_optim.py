"""Every parameter is updated once, and decays only where it should."""

import pytest
import torch

from vitlab.models.registry import create_model
from vitlab.train.config import OptimizerConfig
from vitlab.train.muon import Muon
from vitlab.train.optim import build_optimizers, optimizer_flops


@pytest.mark.parametrize("name", ["adamw", "muon", "sgd"])
@pytest.mark.parametrize("model", ["vit_test", "vit_cifar_hybrid", "cnn_tutorial"])
def test_every_parameter_has_one_group(name: str, model: str) -> None:
    built = create_model(model)
    groups = [
        g for o in build_optimizers(built, OptimizerConfig(name=name)) for g in o.param_groups
    ]
    found = [id(p) for group in groups for p in group["params"]]
    assert sorted(found) == sorted(id(p) for p in built.parameters())


def test_decay_is_for_weights_alone() -> None:
    model = create_model(
        "vit_test", registers=2, layer_scale=0.1, pool="map", attention="lsa", position="relative"
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
    assert not any("norm" in name for name in decayed)


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
