"""Muon against torch's own, and what orthogonalising promises."""

import pytest
import torch
from torch import nn
from torch.optim._muon import _zeropower_via_newtonschulz

from vitlab.training.config import OptimizerConfig
from vitlab.training.muon import Muon, newton_schulz_dtype, newton_schulz_flops, orthogonalise
from vitlab.training.optim import build_optimizers, optimizer_flops
from vitlab.weights.load import create_model

# A different prime for every axis.
S, R, C = 2, 7, 13


@pytest.mark.parametrize("shape", [(R, C), (C, R), (R, R)])
@pytest.mark.parametrize("iterations", [3, 5])
def test_orthogonalise_agrees_with_torch(shape: tuple[int, int], iterations: int) -> None:
    torch.manual_seed(0)
    matrices = torch.randn(S, *shape)
    factors = (3.4445, -4.7750, 2.0315)
    expected = torch.stack(
        [_zeropower_via_newtonschulz(m, factors, iterations, 1e-7) for m in matrices]
    )
    found = orthogonalise(matrices, iterations=iterations)
    # torch iterates in bfloat16, which has 8 bits of precision; five iterations amplify that.
    torch.testing.assert_close(found, expected.float(), atol=0.06, rtol=0.0)


def test_singular_values_come_near_one() -> None:
    torch.manual_seed(0)
    values = torch.linalg.svdvals(orthogonalise(torch.randn(S, R, C), iterations=5))
    assert values.min() > 0.5
    assert values.max() < 1.3


def test_directions_stay() -> None:
    torch.manual_seed(0)
    matrix = torch.randn(1, R, C, dtype=torch.float64)
    u, _, v = torch.linalg.svd(matrix[0], full_matrices=False)
    found = orthogonalise(matrix, iterations=5)[0]
    inner = u.mT @ found @ v.mT
    off = inner - torch.diag(inner.diagonal())
    assert off.abs().max() < 1e-4  # computed in float32


def test_a_fused_parameter_is_orthogonalised_matrix_by_matrix() -> None:
    torch.manual_seed(0)
    fused = nn.Parameter(torch.randn(3 * R, C))
    parts = [nn.Parameter(part.clone()) for part in fused.detach().chunk(3)]
    gradient = torch.randn(3 * R, C)
    whole = Muon([(fused, 3)], lr=0.1, momentum=0.9, weight_decay=0.01, iterations=5)
    single = Muon(
        [(part, 1) for part in parts], lr=0.1, momentum=0.9, weight_decay=0.01, iterations=5
    )
    for _ in range(3):
        fused.grad = gradient.clone()
        for part, piece in zip(parts, gradient.chunk(3), strict=True):
            part.grad = piece.clone()
        whole.step()
        single.step()
    torch.testing.assert_close(fused.detach(), torch.cat([p.detach() for p in parts]))


def test_a_step_agrees_with_torch() -> None:
    torch.manual_seed(0)
    ours, theirs = (nn.Parameter(torch.ones(R, C)) for _ in range(2))
    mine = Muon([(ours, 1)], lr=0.1, momentum=0.95, weight_decay=0.1, iterations=5)
    reference = torch.optim.Muon([theirs], lr=0.1, momentum=0.95, weight_decay=0.1)
    for seed in range(4):
        torch.manual_seed(seed)
        gradient = torch.randn(R, C)
        ours.grad, theirs.grad = gradient.clone(), gradient.clone()
        mine.step()
        reference.step()
    # Four steps of 0.1 in bfloat16 on their side.
    torch.testing.assert_close(ours.detach(), theirs.detach(), atol=0.02, rtol=0.0)


def test_momentum_of_what_no_longer_learns_ends() -> None:
    torch.manual_seed(0)
    parameter = nn.Parameter(torch.randn(R, C))
    optimizer = Muon([(parameter, 1)], lr=0.01, momentum=0.95, weight_decay=0.0, iterations=5)
    alive = torch.ones(R, 1)
    for step in range(1000):
        alive[3] = float(step == 0)
        parameter.grad = torch.randn(R, C) * alive
        optimizer.step()
    momentum = optimizer.state[parameter]["momentum"]
    assert (momentum[3] == 0).all()  # 0.95 ** 1000 is 5e-23, and on its way to denormal numbers
    assert (momentum[:3] != 0).all()


def test_the_cpu_computes_in_float32() -> None:
    assert newton_schulz_dtype(torch.device("cpu")) == torch.float32


@pytest.mark.parametrize("iterations", [3, 5])
def test_flops_by_counting(iterations: int) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    counter = FlopCounterMode(display=False)
    with counter:
        orthogonalise(torch.randn(1, R, C), iterations=iterations)
    expected = counter.get_total_flops()
    assert newton_schulz_flops(R, C, iterations=iterations) == expected
    assert newton_schulz_flops(C, R, iterations=iterations) == expected


def test_the_option_sets_the_iterations() -> None:
    model = create_model("vit_test")
    found = {}
    for iterations in (3, 5):
        config = OptimizerConfig(name="muon", muon_iterations=iterations)
        optimizer = build_optimizers(model, config)[0]
        assert isinstance(optimizer, Muon)
        assert optimizer.iterations == iterations
        found[iterations] = optimizer_flops(model, config)
    assert 5 * found[3] == 3 * found[5] > 0
