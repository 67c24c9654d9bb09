"""Costs and tables against closed forms, hand computations and torch's own counter."""

import json
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from vitlab import summary, variants
from vitlab.errors import ConfigError, InputError
from vitlab.models.config import ViTConfig
from vitlab.models.cost import FlopCounter, cost, count_flops, meta_copy
from vitlab.models.variants import create_model, variant


def closed_form(config: ViTConfig) -> int:
    """FLOPs of a plain ViT, 2 per multiply-add, from the sizes alone."""
    rows, columns = config.grid
    patches, tokens = rows * columns, config.tokens
    patch_height, patch_width = (
        (config.patch_size,) * 2 if isinstance(config.patch_size, int) else config.patch_size
    )
    inner = config.heads * config.key_width
    stem = patches * config.channels * patch_height * patch_width * config.width
    attention = tokens * config.width * 4 * inner + 2 * tokens**2 * inner
    mlp = 2 * tokens * config.width * config.mlp_width
    return 2 * (stem + config.depth * (attention + mlp) + config.width * config.classes)


ODD = ViTConfig(
    width=30,
    depth=3,
    heads=5,
    head_width=7,
    mlp_width=37,
    patch_size=(4, 3),
    image_size=(44, 39),
    channels=2,
    classes=11,
    registers=3,
)


@pytest.mark.parametrize("name", ["vit_ti16", "vit_b16", "vit_b16_384_gap", "vit_h14"])
def test_flops_of_names_equal_the_closed_form(name: str) -> None:
    config = variant(name)
    assert isinstance(config, ViTConfig)
    found = cost(name)
    assert found.flops == closed_form(config)
    assert found.macs == found.flops // 2
    assert found.tokens == config.tokens


def test_flops_of_configs_and_models_equal_the_closed_form() -> None:
    assert cost(ODD) == cost(create_model(ODD))
    assert cost(ODD).flops == closed_form(ODD)


def test_known_costs() -> None:
    base = cost("vit_b16")
    assert (base.parameters, base.tokens) == (86_567_656, 197)
    assert base.flops == 35_127_656_448  # 35.1 GFLOPs: the 17.6 "GFLOPs" of others are MACs
    assert cost("vit_seed").parameters == 7_690_762


@pytest.mark.slow
def test_every_variant_has_a_cost() -> None:
    for name in variants():
        found = cost(name)
        assert found.flops > 0
        assert (found.tokens is None) == (not name.startswith("vit_"))


@pytest.mark.parametrize("name", ["vit_test", "vit_cifar_hybrid", "vit_cifar_spt", "cnn_tutorial"])
def test_flops_equal_those_of_torch(name: str) -> None:
    model = create_model(name).eval()
    with FlopCounterMode(display=False) as counter, torch.device("meta"), torch.no_grad():
        meta_copy(model)(torch.empty(1, 3, 32, 32))
    assert count_flops(model, 32, 3) == counter.get_total_flops()


class Attend(nn.Module):
    """Attention alone, in either form."""

    def __init__(self, fused: bool) -> None:
        super().__init__()
        self.fused = fused

    def forward(self, x: Tensor) -> Tensor:
        if self.fused:
            return F.scaled_dot_product_attention(x, x, x)
        return (x @ x.mT).softmax(dim=-1) @ x


@pytest.mark.parametrize("fused", [True, False])
def test_attention_counts_the_same_in_both_forms(fused: bool) -> None:
    tokens, key_width, heads = 13, 7, 3
    assert count_flops(Attend(fused), (tokens, key_width), heads) == 4 * heads * tokens**2 * 7


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad])
def test_attention_is_counted_on_the_cpu(fused: bool, mode: Callable[[], torch.no_grad]) -> None:
    counts: list[int] = []
    with mode(), FlopCounter(counts.append):
        Attend(fused)(torch.randn(1, 3, 13, 7))
    assert sum(counts) == 4 * 3 * 13**2 * 7


class LooksAtValues(nn.Module):
    """Impossible without numbers: a branch on a pixel, and the fused path of torch's own layer."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)

    def forward(self, images: Tensor) -> Tensor:
        x = images.flatten(2).mT  # [B, N, D]
        return self.attention(x, x, x, need_weights=False)[0] if images.sum() == 0 else x


def test_a_model_that_looks_at_values_is_run_for_real() -> None:
    width, tokens = 6, 20
    expected = 2 * tokens * width * 4 * width + 4 * tokens**2 * width
    assert count_flops(LooksAtValues(), (4, 5), 6) == expected
    assert torch.backends.mha.get_fastpath_enabled()


class Small(nn.Module):
    """Something of everything: own parameter, tied weight, called twice, never called, buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3, 1, 1))
        self.body = nn.Sequential(nn.Conv2d(3, 5, 2), nn.BatchNorm2d(5), nn.Identity())
        self.twice = nn.Linear(5, 5)
        self.tied = nn.Linear(5, 5, bias=False)
        self.tied.weight = self.twice.weight
        self.unused = nn.Linear(2, 2)
        self.unused.requires_grad_(False)

    def forward(self, images: Tensor) -> Tensor:
        x = self.body(images * self.scale).mean(dim=(2, 3))
        return self.tied(self.twice(self.twice(x))) @ self.twice.weight


def test_rows_against_hand_computations() -> None:
    found = summary(Small(), input_size=(2, 3, 7, 5), depth=3)
    rows = {row.path: (row.type, row.output_shape, row.parameters, row.flops) for row in found.rows}
    assert rows == {
        "": ("Small", (2, 5), 0, 2 * 2 * 5 * 5),
        "scale": ("Parameter", (3, 1, 1), 3, 0),
        "body": ("Sequential", (2, 5, 6, 4), 0, 0),
        "body.0": ("Conv2d", (2, 5, 6, 4), 65, 2 * 2 * (6 * 4) * 5 * (3 * 2 * 2)),
        "body.1": ("BatchNorm2d", (2, 5, 6, 4), 10, 0),
        "twice": ("Linear", (2, 5), 30, 2 * (2 * 2 * 5 * 5)),
        "tied": ("Linear", (2, 5), 0, 2 * 2 * 5 * 5),
        "unused": ("Linear", None, 6, 0),
    }
    assert found.parameters == 3 + 65 + 10 + 30 + 6
    assert found.trainable == found.parameters - 6
    assert found.tokens is None
    assert found.input_bytes == 4 * 2 * 3 * 7 * 5
    assert found.parameter_bytes == 4 * found.parameters


@pytest.mark.parametrize("name", ["vit_test", "vit_cifar_hybrid", "vit_seed", "cnn_tutorial"])
@pytest.mark.parametrize("depth", [0, 1, 2, 3, 9])
def test_columns_sum_to_the_totals_at_any_depth(name: str, depth: int) -> None:
    found, whole = summary(name, depth=depth), cost(name)
    assert sum(row.parameters for row in found.rows) == found.parameters == whole.parameters
    assert sum(row.flops for row in found.rows) == found.flops == whole.flops
    assert max(row.depth for row in found.rows) <= depth


def test_batch_and_image() -> None:
    one, five = (summary("vit_test", input_size=(b, 3, 32, 32)) for b in (1, 5))
    assert five.flops == 5 * one.flops
    assert five.flops_per_image == one.flops == cost("vit_test").flops
    assert five.macs == five.flops // 2
    assert five.macs_per_image == one.macs


def test_attention_has_its_own_flops() -> None:
    config = variant("vit_test")
    assert isinstance(config, ViTConfig)
    rows = {row.path: row for row in summary("vit_test", depth=9).rows}
    attention = rows["encoder.blocks.0.attention"]
    assert attention.flops == 4 * config.tokens**2 * config.width
    assert rows["cls_token"].parameters == config.width


def test_the_model_is_left_as_it_was() -> None:
    model = Small().train()
    model.body.eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    summary(model, input_size=(2, 3, 7, 5))
    with pytest.raises(RuntimeError):
        summary(model, input_size=(2, 4, 7, 5))
    torch.testing.assert_close(dict(model.state_dict()), before, rtol=0, atol=0)
    assert [module.training for module in model.modules()] == modes
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert model.tied.weight is model.twice.weight


def test_table() -> None:
    text = str(summary(Small(), input_size=(2, 3, 7, 5)))
    assert text.splitlines() == [
        "═══════════════════════════════════════════════════════",
        "Layer (type)           Output shape  Parameters   FLOPs",
        "═══════════════════════════════════════════════════════",
        "Small                  [2, 5]                 –     100",
        "├─ scale (Parameter)   [3, 1, 1]              3       –",
        "├─ body (Sequential)   [2, 5, 6, 4]           –       –",
        "│  ├─ 0 (Conv2d)       [2, 5, 6, 4]          65  5.76 k",
        "│  └─ 1 (BatchNorm2d)  [2, 5, 6, 4]          10       –",
        "├─ twice (Linear)      [2, 5]                30     200",
        "├─ tied (Linear)       [2, 5]                 –     100",
        "└─ unused (Linear)     –                      6       –",
        "───────────────────────────────────────────────────────",
        "Parameters: 114 (trainable 108), 0.00 MB",
        "FLOPs, one image: 3,080 (3.08 k); MACs: 1,540 (1.54 k)",
        "FLOPs, batch of 2: 6,160 (6.16 k); MACs: 3,080 (3.08 k)",
        "Input: [2, 3, 7, 5], 0.00 MB",
        "═══════════════════════════════════════════════════════",
    ]


def test_json() -> None:
    found = summary("vit_test", input_size=(2, 3, 32, 32), depth=1)
    data = json.loads(json.dumps(found.to_dict()))
    assert data["flops_per_image"] == found.flops_per_image
    assert data["rows"][0]["output_shape"] == [2, 10]


POOLED = replace(
    ODD, image_size=(48, 36), pool_after=2, class_token=False, registers=0, pool="mean"
)


@pytest.mark.parametrize("position", ["none", "conditional"])
def test_flops_of_a_coarser_grid_and_of_conditional_positions(position: str) -> None:
    config = replace(POOLED, position=position)
    if position == "conditional":
        config = replace(config, position_at="every_layer")
    width, inner, hidden = 30, 5 * 7, 37
    blocks = positions = 0
    for patches in (144, 144, 36):
        blocks += 2 * patches * (width * 4 * inner + 2 * patches * inner + 2 * width * hidden)
        positions += 2 * patches * 9 * width if position == "conditional" else 0
    rest = 2 * (144 * 2 * 4 * 3 * width + width * 11)
    found = summary(config)
    assert found.flops == cost(config).flops == blocks + positions + rest
    assert found.encoder_flops == blocks
    assert found.encoder_share == blocks / found.flops
    assert (found.tokens, found.last_tokens) == (144, 36)
    assert found.to_dict()["encoder_share"] == found.encoder_share
    lines = str(found).splitlines()
    assert "Tokens: 144, then 36" in lines
    assert f"Encoder: {100 * blocks / found.flops:.1f}% of the FLOPs" in lines


def test_an_encoder_without_blocks_has_no_share() -> None:
    config = replace(POOLED, depth=0, pool_after=None)
    found = summary(config)
    assert found.encoder_share == 0.0
    assert (found.tokens, found.last_tokens, cost(config).tokens) == (144, 144, 144)


def test_only_a_transformer_has_an_encoder() -> None:
    found = summary("cnn_tutorial")
    assert found.encoder_share is None
    assert "Encoder" not in str(found)
    assert "Tokens: 17\n" in str(summary("vit_test"))


def test_other_types_and_devices() -> None:
    model = create_model("vit_test").double()
    found = summary(model)
    assert found.parameter_bytes == 8 * found.parameters
    assert found.flops == summary(meta_copy(model)).flops
    with torch.inference_mode():
        assert summary(model).flops == found.flops


def test_mistakes_are_named() -> None:
    with pytest.raises(ConfigError, match="Linear has no config"):
        cost(nn.Linear(2, 2))
    with pytest.raises(InputError, match="input_size"):
        summary("vit_test", input_size=(3, 32, 32))
    with pytest.raises(InputError, match="depth -1"):
        summary("vit_test", depth=-1)
    with pytest.raises(InputError, match="images"):
        summary("vit_test", input_size=(1, 4, 32, 32))
