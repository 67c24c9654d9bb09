"""Sharpness-aware minimisation against its definition."""

import torch
from torch import nn

from vitlab.training.optim import sharpness_aware

RADIUS = 0.3


def test_the_gradient_is_that_of_the_worst_neighbour() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)).double()
    x, y = torch.randn(7, 3).double(), torch.randn(7, 2).double()
    before = [p.detach().clone() for p in model.parameters()]

    def loss_at(weights: list[torch.Tensor]) -> torch.Tensor:
        hidden = torch.tanh(x @ weights[0].T + weights[1])
        return ((hidden @ weights[2].T + weights[3] - y) ** 2).mean()

    here = [w.clone().requires_grad_() for w in before]
    gradients = torch.autograd.grad(loss_at(here), here)
    norm = sum((g**2).sum() for g in gradients) ** 0.5
    worst = [
        (w + RADIUS * g / norm).requires_grad_() for w, g in zip(before, gradients, strict=True)
    ]
    expected = torch.autograd.grad(loss_at(worst), worst)

    def backward() -> torch.Tensor:
        loss = ((model(x) - y) ** 2).mean()
        loss.backward()
        return loss.detach()

    loss = sharpness_aware(model, backward, RADIUS)()
    torch.testing.assert_close(loss, loss_at(before))
    for parameter, gradient, was in zip(model.parameters(), expected, before, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)
        assert torch.equal(parameter, was)


def test_batch_norm_counts_a_batch_once() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5)).train()
    plain = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5)).train()
    plain.load_state_dict(model.state_dict())
    x = torch.randn(7, 3)

    def backward() -> torch.Tensor:
        loss = (model(x) ** 3).mean()
        loss.backward()
        return loss.detach()

    sharpness_aware(model, backward, RADIUS)()
    plain(x)
    torch.testing.assert_close(model[1].running_mean, plain[1].running_mean)
    torch.testing.assert_close(model[1].running_var, plain[1].running_var)
    assert model[1].momentum == plain[1].momentum


def test_both_passes_draw_the_same_numbers() -> None:
    torch.manual_seed(0)
    model, drawn = nn.Linear(3, 2), []

    def backward() -> torch.Tensor:
        drawn.append(torch.rand(7, 3))
        loss = (model(drawn[-1]) ** 2).mean()
        loss.backward()
        return loss.detach()

    sharpness_aware(model, backward, RADIUS)()
    sharpness_aware(model, backward, RADIUS)()
    assert torch.equal(drawn[0], drawn[1])
    assert torch.equal(drawn[2], drawn[3])
    assert not torch.equal(drawn[1], drawn[2])  # the next step draws others
