"""t-SNE: its affinities by their definition, its gradient by the loss, and what it is for."""

import numpy as np
import torch

from vitlab.explain.embedding import (
    conditional_affinities,
    divergence_gradient,
    joint_affinities,
    tsne,
)

N, P = 23, 5


def rows() -> torch.Tensor:
    generator = torch.Generator().manual_seed(2)
    return torch.randn(N, P, dtype=torch.float64, generator=generator)


def test_every_row_has_the_perplexity_asked_for() -> None:
    squared = torch.cdist(rows(), rows()).square()
    found = conditional_affinities(squared, 6.0).numpy()
    assert not found.diagonal().any()
    for row, distances in zip(found, squared.numpy(), strict=True):
        others = row > 0
        np.testing.assert_allclose(row.sum(), 1.0)
        entropy = -(row[others] * np.log(row[others])).sum()
        np.testing.assert_allclose(np.exp(entropy), 6.0, rtol=1e-9)
        # A Gaussian: the logarithm falls in proportion to the squared distance.
        slope = np.polyfit(distances[others], np.log(row[others]), 1)
        np.testing.assert_allclose(
            np.polyval(slope, distances[others]), np.log(row[others]), atol=1e-8
        )


def test_rows_that_are_all_alike_have_even_affinities() -> None:
    found = joint_affinities(torch.ones(4, 3), 1.5)
    np.testing.assert_allclose(found, (1 - np.eye(4)) / 12)


def test_the_gradient_is_that_of_the_divergence() -> None:
    p = joint_affinities(rows(), 5.0)
    y = rows()[:, :2].clone().requires_grad_()
    near = 1 / (1 + (y[:, None] - y).square().sum(dim=-1)) * (1 - torch.eye(N))
    q = near / near.sum()
    others = ~torch.eye(N, dtype=torch.bool)
    (p[others] * (p[others] / q[others]).log()).sum().backward()
    assert y.grad is not None
    np.testing.assert_allclose(divergence_gradient(p, y.detach()), y.grad, atol=1e-12)


def test_groups_stay_together() -> None:
    groups = torch.arange(N) % 3
    spread = rows() + 20.0 * torch.eye(P, dtype=torch.float64)[groups]
    told: list[tuple[int, int]] = []
    y = tsne(spread, steps=300, watch=lambda done, total: told.append((done, total)))
    distances = torch.cdist(y, y) + torch.diag(torch.full((N,), torch.inf))
    assert (groups[distances.argmin(dim=1)] == groups).all()
    assert (told[0], told[-1]) == ((1, 300), (300, 300))
    assert torch.equal(y, tsne(spread, steps=300))


def test_few_and_equal_points_are_no_trouble() -> None:
    assert tsne(torch.ones(3, 2), steps=5).isfinite().all()
    assert tsne(torch.tensor([[1.0], [2.0]]), steps=5).isfinite().all()
    assert tsne(torch.ones(1, 4), steps=5).tolist() == [[0.0, 0.0]]
