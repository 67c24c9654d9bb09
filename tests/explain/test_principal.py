"""Principal components against the eigenvectors of the covariance."""

import numpy as np
import torch

from vitlab.explain.embedding import principal_components

N, P, K = 13, 7, 3


def rows(n: int = N, p: int = P) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(n, p, dtype=torch.float64, generator=generator)
    return x * torch.arange(1, p + 1) + 5.0


def test_components_are_the_eigenvectors_of_the_covariance() -> None:
    x = rows().numpy()
    values, vectors = np.linalg.eigh(np.cov(x.T))
    expected = vectors[:, ::-1].T[:K]
    for vector in expected:
        vector *= np.sign(vector[np.abs(vector).argmax()])
    found = principal_components(rows(), K)
    # Eigenvectors lose half the digits of what they are computed from.
    np.testing.assert_allclose(found.directions, expected, atol=1e-7)
    np.testing.assert_allclose(found.shares, values[::-1][:K] / values.sum(), rtol=1e-10)
    np.testing.assert_allclose(found.project(rows()), (x - x.mean(axis=0)) @ expected.T, atol=1e-6)


def test_the_sign_does_not_depend_on_the_solver() -> None:
    found = principal_components(rows(), K)
    turned = principal_components(-rows(), K)
    np.testing.assert_allclose(found.directions, turned.directions, atol=1e-10)
    largest = found.directions.gather(1, found.directions.abs().argmax(1, keepdim=True))
    assert (largest > 0).all()


def test_there_are_no_more_than_the_rows_span() -> None:
    x = rows(5, 11)
    assert len(principal_components(x, 28).directions) == 4
    same = principal_components(torch.ones(5, 3), 2)
    assert same.directions.shape == (0, 3)
    assert same.project(torch.ones(2, 3)).shape == (2, 0)
