"""Initialisation of the original code: shape of every distribution, part by part."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from vitlab.models.config import ViTConfig
from vitlab.models.vit import VisionTransformer
from vitlab.nn.init import lecun_normal_
from vitlab.nn.pool import AttentionPool

WIDTH, MLP, HEADS = 192, 768, 3


@pytest.fixture(scope="module")
def model() -> VisionTransformer:
    torch.manual_seed(0)
    config = ViTConfig(
        width=WIDTH,
        depth=1,
        heads=HEADS,
        mlp_width=MLP,
        patch_size=8,
        image_size=(64, 128),
        registers=64,
        classes=7,
        head="mlp",
        representation_size=96,
        qk_norm=True,
        position_prefix="none",
    )
    return VisionTransformer(config)


def is_uniform(weight: Tensor, bound: float) -> None:
    """Uniform on (-bound, bound): mean 0, deviation bound / sqrt 3, no value outside."""
    assert weight.abs().max().item() <= bound
    assert weight.abs().max().item() > 0.99 * bound
    assert weight.mean().item() == pytest.approx(0.0, abs=0.02 * bound)
    assert weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.02)


def is_normal(weight: Tensor, std: float) -> None:
    """Normal around 0: deviation, and one value in about 22 beyond two deviations."""
    assert weight.mean().item() == pytest.approx(0.0, abs=0.05 * std)
    assert weight.std().item() == pytest.approx(std, rel=0.05)
    beyond = (weight.abs() > 2 * std).double().mean().item()
    assert beyond == pytest.approx(0.0455, abs=0.02)


def is_truncated_normal(weight: Tensor, std: float) -> None:
    """Deviation `std` after cutting at two deviations of the uncut normal."""
    uncut = std / 0.8796
    assert weight.mean().item() == pytest.approx(0.0, abs=0.03 * std)
    assert weight.std().item() == pytest.approx(std, rel=0.03)
    assert weight.abs().max().item() <= 2 * uncut * 1.0001
    assert weight.abs().max().item() > 1.9 * uncut


def test_truncation_constant() -> None:
    """Variance of a normal cut at two deviations: 1 - 4 φ(2) / (2 Φ(2) - 1)."""
    density = math.exp(-2) / math.sqrt(2 * math.pi)
    inside = math.erf(2 / math.sqrt(2))
    weight = torch.empty(500, 400)
    torch.manual_seed(0)
    lecun_normal_(weight)
    assert math.sqrt(1 - 4 * density / inside) == pytest.approx(0.87962566)
    is_truncated_normal(weight, 400**-0.5)


def test_patch_projection(model: VisionTransformer) -> None:
    proj = model.stem.proj
    assert isinstance(proj, nn.Conv2d)
    is_truncated_normal(proj.weight, (3 * 8 * 8) ** -0.5)
    assert proj.bias is not None
    assert (proj.bias == 0).all()


def test_attention_is_drawn_as_separate_matrices(model: VisionTransformer) -> None:
    attention = model.encoder.blocks[0].attention
    bound = math.sqrt(6 / (WIDTH + WIDTH))
    for matrix in attention.qkv.weight.chunk(3):
        is_uniform(matrix, bound)
    is_uniform(attention.proj.weight, bound)
    assert (attention.qkv.bias == 0).all()
    assert (attention.proj.bias == 0).all()


def test_attention_of_another_head_width() -> None:
    config = ViTConfig(
        width=64, depth=1, heads=2, head_width=128, mlp_width=8, patch_size=8, image_size=16
    )
    attention = VisionTransformer(config).encoder.blocks[0].attention
    for matrix in attention.qkv.weight.chunk(3):
        is_uniform(matrix, math.sqrt(6 / (64 + 256)))
    is_uniform(attention.proj.weight, math.sqrt(6 / (64 + 256)))


def test_mlp(model: VisionTransformer) -> None:
    mlp = model.encoder.blocks[0].mlp
    bound = math.sqrt(6 / (WIDTH + MLP))
    for layer in (mlp.fc1, mlp.fc2):
        is_uniform(layer.weight, bound)
    is_normal(torch.cat([mlp.fc1.bias, mlp.fc2.bias]), 1e-6)


SILENT = {"width": 12, "depth": 3, "heads": 3, "mlp_width": 17, "patch_size": 4, "image_size": 8}


@pytest.mark.parametrize("proj_bias", [True, False])
def test_blocks_begin_as_the_identity_if_asked(proj_bias: bool) -> None:
    torch.manual_seed(0)
    config = ViTConfig(**SILENT, zero_init_residual=True, proj_bias=proj_bias, layer_scale=0.5)
    model = VisionTransformer(config)
    x = torch.randn(2, 5, 12)
    for block in model.encoder.blocks:
        assert torch.equal(block(x, (2, 2)), x)
        for layer in (block.attention.proj, block.mlp.fc2):
            assert not any(parameter.any() for parameter in layer.parameters())
        assert block.attention.qkv.weight.any()
        assert block.mlp.fc1.weight.any()
    # The rest is drawn as without it.
    torch.manual_seed(0)
    plain = VisionTransformer(replace(config, zero_init_residual=False)).state_dict()
    zero = {
        f"encoder.blocks.{i}.{part}." for i in range(3) for part in ("attention.proj", "mlp.fc2")
    }
    for name, tensor in model.state_dict().items():
        if not name.startswith(tuple(zero)):
            assert torch.equal(tensor, plain[name]), name


def test_tokens_and_positions(model: VisionTransformer) -> None:
    assert model.cls_token is not None
    assert model.registers is not None
    assert (model.cls_token == 0).all()
    is_normal(model.registers, 0.02)
    is_normal(model.positions[0].table, 0.02)


def test_head_is_zero_and_pre_logits_are_not(model: VisionTransformer) -> None:
    assert model.head is not None
    assert model.pre_logits is not None
    assert (model.head.weight == 0).all()
    assert (model.head.bias == 0).all()
    is_truncated_normal(model.pre_logits.weight, WIDTH**-0.5)
    assert (model.pre_logits.bias == 0).all()
    assert (model(torch.randn(2, 3, 64, 128)) == 0).all()


def test_norms_do_nothing_at_first(model: VisionTransformer) -> None:
    norms = [module for module in model.modules() if isinstance(module, nn.LayerNorm)]
    assert len(norms) == 5  # two of the block, of queries, of keys, the last
    for norm in norms:
        assert (norm.weight == 1).all()
        assert (norm.bias == 0).all()


def test_other_positions() -> None:
    sizes = {"width": 192, "depth": 2, "heads": 3, "mlp_width": 8, "patch_size": 4}
    torch.manual_seed(0)
    flat = VisionTransformer(
        ViTConfig(**sizes, image_size=(64, 128), position="learned2d", position_at="every_layer")
    )
    for position in flat.positions:
        is_normal(position.rows, 0.02)
        is_normal(position.columns, 0.02)
        assert position.prefix.std().item() == pytest.approx(0.02, rel=0.3)  # 192 numbers
    relative = VisionTransformer(ViTConfig(**sizes, image_size=64, position="relative"))
    for block in relative.encoder.blocks:
        is_normal(block.attention.offsets, 0.02)
    biased = VisionTransformer(ViTConfig(**sizes, image_size=64, position="relative_bias"))
    for block in biased.encoder.blocks:
        is_normal(block.attention.offset_bias.table, 0.02)


@pytest.mark.parametrize("position", ["learned1d", "learned2d"])
def test_learned_positions_start_at_the_requested_size(position: str) -> None:
    torch.manual_seed(0)
    fields = SILENT | {"width": 96, "heads": 3, "image_size": 64, "position_std": 0.71}
    for table in VisionTransformer(ViTConfig(**fields, position=position)).positions.parameters():
        if len(table) > 1:
            is_normal(table, 0.71)


def test_conditional_positions_start_as_none() -> None:
    torch.manual_seed(0)
    model = VisionTransformer(ViTConfig(**SILENT, position="conditional", registers=2))
    x = torch.randn(2, 7, 12)
    assert torch.equal(model.positions[0](x, (2, 2)), x)
    assert not any(parameter.any() for parameter in model.positions.parameters())


def test_a_head_of_relative_bias_starts_local() -> None:
    """Minus `relative_local` times the squared distance to the head's neighbour, not below -8."""
    rows, columns, heads = 3, 5, 11
    config = ViTConfig(
        width=22,
        depth=2,
        heads=heads,
        mlp_width=8,
        patch_size=2,
        image_size=(2 * rows, 2 * columns),
        position="relative_bias",
        relative_local=0.5,
    )
    neighbours = [(0, 1), (0, -1), (1, 0), (-1, 0), (1, 1), (-1, -1), (1, -1), (-1, 1), (0, 0)]
    expected = torch.empty(heads, 2 * rows - 1, 2 * columns - 1, dtype=torch.float64)
    for head, (y, x) in enumerate([*neighbours, (0, 1), (0, -1)]):
        for down in range(-2, 3):
            for right in range(-4, 5):
                distance = (down - y) ** 2 + (right - x) ** 2
                expected[head, down + 2, right + 4] = max(-0.5 * distance, -8.0)
    assert (expected == -8.0).any()
    for block in VisionTransformer(config).encoder.blocks:
        assert torch.equal(block.attention.offset_bias.table.detach(), expected.float())


def test_attention_that_starts_local_looks_at_a_neighbour() -> None:
    torch.manual_seed(0)
    model = VisionTransformer(
        ViTConfig(**SILENT | {"image_size": 28}, position="relative_bias", relative_local=5.0)
    )
    for projection in (block.attention.qkv for block in model.encoder.blocks):
        nn.init.zeros_(projection.weight)
    weights = model.attention(torch.randn(1, 3, 28, 28))[0][0]
    patch = 1 + 3 * 7 + 3
    for head, step in enumerate((1, -1, 7)):
        assert weights[head, patch, 1:].argmax() == patch - 1 + step
    torch.testing.assert_close(weights[:, 0], torch.full((3, 50), 1 / 50))  # the class token


def test_lsa_starts_as_plain_attention() -> None:
    config = ViTConfig(
        width=24, depth=1, heads=3, mlp_width=8, patch_size=4, image_size=8, attention="lsa"
    )
    temperature = VisionTransformer(config).encoder.blocks[0].attention.temperature
    assert temperature.shape == (3,)
    assert temperature.exp().tolist() == pytest.approx([8**-0.5] * 3)


def test_attention_pool() -> None:
    torch.manual_seed(0)
    pool = AttentionPool(WIDTH, heads=HEADS, mlp_width=MLP)
    for layer in (pool.attention.q, pool.attention.k, pool.attention.v, pool.attention.out):
        is_uniform(layer.weight, math.sqrt(6 / (WIDTH + WIDTH)))
        assert (layer.bias == 0).all()
    is_uniform(pool.mlp.fc1.weight, math.sqrt(6 / (WIDTH + MLP)))
    # Xavier of a [1, D] matrix, as in big_vision: fan-in 1, fan-out D.
    bound = math.sqrt(6 / (1 + WIDTH))
    assert 0.95 * bound < pool.probe.abs().max().item() <= bound


def test_conv_tokenizer() -> None:
    torch.manual_seed(0)
    config = ViTConfig(
        width=64,
        depth=1,
        heads=2,
        mlp_width=8,
        patch_size=4,
        image_size=8,
        stem="conv",
        conv_widths=(64,),
    )
    convs = VisionTransformer(config).stem.convs
    is_truncated_normal(convs[1].conv.weight, (64 * 9) ** -0.5)
    assert convs[0].conv.weight.std().item() == pytest.approx((3 * 9) ** -0.5, rel=0.05)


def test_the_same_seed_gives_the_same_model() -> None:
    config = ViTConfig(width=8, depth=1, heads=2, mlp_width=8, patch_size=4, image_size=8)
    states = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        states.append(VisionTransformer(config).state_dict())
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert not torch.equal(states[0]["stem.proj.weight"], states[2]["stem.proj.weight"])
