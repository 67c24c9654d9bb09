"""Blocks, MLP, pools and what is left out at random."""

from typing import Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from reference.attention import multi_head
from reference.layers import branch, gelu, layer_norm, mlp
from reference.random_weights import randomise
from reference.resnet import under
from vitlab.nn.encoder import DropPath, Encoder, EncoderBlock, LayerScale
from vitlab.nn.mlp import Mlp
from vitlab.nn.pool import AttentionPool, ClassToken, MeanPool

# A different prime for every axis.
B, N, D, F = 2, 7, 11, 13
TOLERANCE = {"atol": 1e-12, "rtol": 1e-12}  # float64, other order of sums


def draw(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


def arrays(module: nn.Module) -> dict[str, np.ndarray]:
    randomise(module)
    return {name: value.numpy() for name, value in module.state_dict().items()}


class Mix(nn.Module):
    """Stands in for attention: a fixed mixture of the tokens that depends on the grid."""

    def forward(self, x: Tensor, grid: tuple[int, int]) -> Tensor:
        return x.flip(1) * grid[0] - x * grid[1]

    def weights(self, x: Tensor, grid: tuple[int, int]) -> Tensor:
        return x[:, None] @ x[:, None].mT


@pytest.mark.parametrize("kind", ["erf", "tanh"])
def test_mlp(kind: Literal["erf", "tanh"]) -> None:
    module = Mlp(D, F, gelu=kind).double()
    p = arrays(module)
    x = draw(B, N, D)
    expected = mlp(x.numpy(), p, kind)
    torch.testing.assert_close(module(x), torch.from_numpy(expected), **TOLERANCE)


@pytest.mark.parametrize("learning", [False, True])
def test_mlp_of_squares(learning: bool) -> None:
    module = Mlp(D, F, activation="relu2").double()
    x = draw(B, N, D)
    expected = mlp(x.numpy(), arrays(module), "relu2")
    with torch.set_grad_enabled(learning):
        torch.testing.assert_close(module(x), torch.from_numpy(expected), **TOLERANCE)


def test_the_two_gelus_differ() -> None:
    x = np.linspace(-3, 3, 13)
    assert 1e-5 < np.abs(gelu(x, "erf") - gelu(x, "tanh")).max() < 1e-3


@pytest.mark.parametrize("scaled", [{}, {"layer_scale": 0.5}, {"branch_norm": 0.5}])
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_block(norm: Literal["pre", "post"], scaled: dict[str, float]) -> None:
    block = EncoderBlock(Mix(), Mlp(D, F), D, norm=norm, norm_eps=0.01, **scaled).double()
    p = arrays(block)
    x = draw(B, N, D).numpy()

    def mixed(x: np.ndarray) -> np.ndarray:
        return x[:, ::-1] * 2 - x * 3

    if norm == "pre":
        middle = x + branch(mixed(layer_norm(x, p, "norm1", 0.01)), p, "scale1", 0.01)
        added = mlp(layer_norm(middle, p, "norm2", 0.01), under(p, "mlp."), "erf")
        expected = middle + branch(added, p, "scale2", 0.01)
        seen = layer_norm(x, p, "norm1", 0.01)
    else:
        middle = layer_norm(x + branch(mixed(x), p, "scale1", 0.01), p, "norm1", 0.01)
        added = mlp(middle, under(p, "mlp."), "erf")
        expected = layer_norm(middle + branch(added, p, "scale2", 0.01), p, "norm2", 0.01)
        seen = x
    found = block(torch.from_numpy(x), (2, 3))
    torch.testing.assert_close(found, torch.from_numpy(expected), **TOLERANCE)
    weights = block.attention_weights(torch.from_numpy(x), (2, 3))
    looked = torch.from_numpy(seen @ seen.swapaxes(1, 2))[:, None]
    torch.testing.assert_close(weights, looked, **TOLERANCE)


def test_tables_are_added_to_the_input_of_each_block() -> None:
    blocks = [EncoderBlock(Mix(), Mlp(D, F), D) for _ in range(2)]
    encoder = Encoder(blocks, nn.LayerNorm(D)).double()
    randomise(encoder)
    x, tables = draw(B, N, D), [draw(N, D, seed=1), draw(N, D, seed=2)]
    first = blocks[0](x + tables[0], (2, 3))
    second = blocks[1](first + tables[1], (2, 3))
    assert torch.equal(encoder.step(x, (2, 3), tables, 0), first)
    assert torch.equal(encoder(x, (2, 3), tables), encoder.norm(second))
    assert torch.equal(
        encoder.attention_weights(first, (2, 3), tables, 1),
        blocks[1].attention_weights(first + tables[1], (2, 3)),
    )
    assert not torch.equal(encoder(x, (2, 3)), encoder(x, (2, 3), tables))


def test_layer_scale_starts_at_its_value() -> None:
    scale = LayerScale(D, init=0.25)
    x = torch.randn(B, N, D)
    assert torch.equal(scale(x), x * 0.25)


def test_the_norm_of_a_branch_starts_at_its_value() -> None:
    block = EncoderBlock(Mix(), Mlp(D, F), D, branch_norm=0.25)
    for scale in (block.scale1, block.scale2):
        assert isinstance(scale, nn.LayerNorm)
        lengths = scale(torch.randn(B, N, D)).square().mean(-1).sqrt()
        torch.testing.assert_close(lengths, torch.full((B, N), 0.25), rtol=1e-3, atol=0)


def test_class_token_and_means() -> None:
    x = draw(B, N, D)
    assert torch.equal(ClassToken()(x), x[:, 0])
    for skip in (0, 1, 3):
        expected = sum(x[:, token] for token in range(skip, N)) / (N - skip)
        torch.testing.assert_close(MeanPool(skip)(x), expected, **TOLERANCE)


@pytest.mark.parametrize("kind", ["erf", "tanh"])
def test_attention_pool(kind: Literal["erf", "tanh"]) -> None:
    """MAPHead of big_vision: no residual path over the attention, one over the MLP."""
    width, heads = 15, 3
    module = AttentionPool(width, heads=heads, mlp_width=F, gelu=kind, norm_eps=0.01).double()
    p = arrays(module)
    x = draw(B, N, width)
    found = module(x)
    for image in range(B):
        y, _ = multi_head(p["probe"][0], x[image].numpy(), under(p, "attention."), heads=heads)
        expected = y + mlp(layer_norm(y, p, "norm", 0.01), under(p, "mlp."), kind)
        torch.testing.assert_close(found[image], torch.from_numpy(expected[0]), **TOLERANCE)


def test_drop_path_drops_whole_images_and_keeps_the_mean() -> None:
    torch.manual_seed(0)
    module = DropPath(0.3).train()
    x = torch.randn(5000, 2, 3)
    y = module(x)
    kept = (y != 0).flatten(1).all(1)
    torch.testing.assert_close(y[kept], x[kept] / 0.7)
    assert (y[~kept] == 0).all()
    share = kept.double().mean().item()
    assert share == pytest.approx(0.7, abs=0.03)  # deviation of the share: 0.0065


def test_drop_path_does_nothing_in_evaluation_or_at_rate_zero() -> None:
    x = torch.randn(B, N, D)
    assert DropPath(0.9).eval()(x) is x
    assert DropPath(0.0).train()(x) is x


def test_drop_path_drops_the_two_branches_independently() -> None:
    torch.manual_seed(0)
    block = EncoderBlock(Mix(), Mlp(D, F), D, drop_path=0.5).double().train()
    randomise(block)
    x = draw(1, N, D).expand(400, -1, -1)
    outcomes = {tuple(np.round(image.flatten()[:3].tolist(), 9)) for image in block(x, (2, 3))}
    assert len(outcomes) == 4


def test_mlp_dropout_is_behind_both_layers() -> None:
    """With ones for weights an output counts the hidden units that were kept, unless it is zero."""
    torch.manual_seed(0)
    module = Mlp(D, 100, dropout=0.5)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.fill_(0.0)
        module.fc1.bias.fill_(1.0)
        module.fc2.weight.fill_(1.0)
    out = module.train()(torch.randn(300, N, D))
    assert (out == 0).double().mean().item() == pytest.approx(0.5, abs=0.02)
    # Each dropout doubles what it keeps.
    kept = out[out != 0] / (2 * 2 * torch.nn.functional.gelu(torch.tensor(1.0)))
    torch.testing.assert_close(kept, kept.round(), atol=1e-3, rtol=0)
    assert kept.mean().item() == pytest.approx(50, abs=1)  # binomial, deviation 5
    assert kept.std().item() == pytest.approx(5, abs=0.5)
    assert module.eval()(torch.randn(1, N, D)).std() < 1e-4  # float32
