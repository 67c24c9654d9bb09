"""Trainable parameters by step, and their learning rates."""

import pytest
import torch

from vitlab.errors import ConfigError
from vitlab.models.variants import create_model
from vitlab.training.config import OptimizerConfig, TrainConfig
from vitlab.training.optim import build_optimizers
from vitlab.training.trainable import prepare_learning, rate_factor, set_learning, train_mode


def learning(model: torch.nn.Module) -> set[str]:
    return {name for name, parameter in model.named_parameters() if parameter.requires_grad}


def test_everything_learns_unless_told_otherwise() -> None:
    model = create_model("vit_test")
    prepare_learning(model, TrainConfig())
    assert learning(model) == {name for name, _ in model.named_parameters()}


def test_a_linear_probe_is_the_head() -> None:
    model = create_model("vit_test", head="mlp")
    prepare_learning(model, TrainConfig(learns="head"))
    assert learning(model) == {
        "head.weight",
        "head.bias",
        "pre_logits.weight",
        "pre_logits.bias",
    }


def test_frozen_blocks_take_the_stem_with_them() -> None:
    model = create_model("vit_test", depth=3)
    prepare_learning(model, TrainConfig(frozen_blocks=2))
    found = learning(model)
    assert {name.split(".")[2] for name in found if "blocks" in name} == {"2"}
    assert {name for name in found if "blocks" not in name} == {
        "encoder.norm.weight",
        "encoder.norm.bias",
        "head.weight",
        "head.bias",
    }
    with pytest.raises(ConfigError, match="frozen_blocks 4; the model has 3 blocks"):
        prepare_learning(model, TrainConfig(frozen_blocks=4))


def test_lora_and_the_head() -> None:
    model = create_model("vit_test")
    prepare_learning(model, TrainConfig(learns="lora", lora_rank=3))
    found = learning(model)
    assert len(found) == 2 * 2 * 4 + 2
    assert all("lora_" in name or name.startswith("head.") for name in found)
    with pytest.raises(ConfigError, match="cnn_tutorial has no encoder"):
        prepare_learning(
            create_model("cnn_tutorial"), TrainConfig(model="cnn_tutorial", learns="lora")
        )


@pytest.mark.parametrize("share", [-0.1, 1.5])
def test_a_share_of_broken_images_is_a_share(share: float) -> None:
    with pytest.raises(ConfigError, match=f"max_broken {share} is not in"):
        TrainConfig(max_broken=share)


def test_what_is_frozen_and_what_is_of_low_rank() -> None:
    config = TrainConfig(learns="lora", frozen_blocks=1)
    with pytest.raises(ConfigError, match="frozen_blocks 1 and learns lora"):
        prepare_learning(create_model("vit_test"), config)


def test_batch_norms_that_do_not_learn_keep_their_statistics() -> None:
    stem = {"stem": "conv", "conv_norm": "batch", "conv_strides": (2, 4), "conv_widths": (5,)}
    model = create_model("vit_test", **stem)
    norms = [part for part in model.modules() if isinstance(part, torch.nn.BatchNorm2d)]
    assert norms
    images = torch.randn(7, 3, 32, 32)
    for config, learns in ((TrainConfig(learns="head"), False), (TrainConfig(), True)):
        prepare_learning(model, config)
        train_mode(model)
        before = [norm.running_mean.clone() for norm in norms]
        model(images)
        kept = [torch.equal(norm.running_mean, b) for norm, b in zip(norms, before, strict=True)]
        assert kept == [not learns] * len(norms)
        assert model.head.training


def test_the_head_learns_alone_at_first() -> None:
    model, config = create_model("vit_test"), TrainConfig(head_first=0.2)
    prepare_learning(model, config)
    everything = learning(model)
    for step, expected in ((0, {"head.weight", "head.bias"}), (19, None), (20, everything)):
        set_learning(model, config, step, 100)
        assert learning(model) == (expected or {"head.weight", "head.bias"})


def test_layers_learn_the_slower_the_lower_they_are() -> None:
    model = create_model("vit_test")  # two blocks
    expected = {
        "head.weight": 1.0,
        "encoder.norm.weight": 1.0,
        "encoder.blocks.1.norm1.weight": 0.5,
        "encoder.blocks.0.mlp.fc1.weight": 0.25,
        "stem.proj.weight": 0.125,
        "positions.0.table": 0.125,
        "cls_token": 0.125,
    }
    for name, factor in expected.items():
        assert rate_factor(name, 2, 0.5) == factor
    assert rate_factor("pooled_norm.weight", 2, 0.5) == 1.0
    [optimizer] = build_optimizers(model, OptimizerConfig(lr=0.8, layer_decay=0.5))
    rates = {
        id(parameter): group["lr"]
        for group in optimizer.param_groups
        for parameter in group["params"]
    }
    assert len(rates) == len(list(model.parameters()))
    named = dict(model.named_parameters())
    for name, factor in expected.items():
        assert rates[id(named[name])] == pytest.approx(0.8 * factor)
