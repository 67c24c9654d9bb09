"""Principal components, with a sign that does not depend on the solver."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from einops import einsum
from jaxtyping import Float
from torch import Tensor

LEAST = 1e-12
"""Share of the variance below which a direction counts as rounding."""


@dataclass(frozen=True, eq=False)
class Components:
    """Directions of largest variance, in decreasing order."""

    mean: Float[Tensor, " p"]
    directions: Float[Tensor, "k p"]
    """Unit vectors; the entry of largest magnitude is positive."""
    shares: Float[Tensor, " k"]
    """Shares of the total variance."""

    def project(self, rows: Float[Tensor, "*n p"]) -> Float[Tensor, "*n k"]:
        """Coordinates of rows along the directions."""
        return (rows.double() - self.mean) @ self.directions.T


def principal_components(rows: Float[Tensor, "n p"], count: int) -> Components:
    """Up to `count` components, in float64; fewer if the rows span fewer."""
    rows = rows.detach().cpu().double()
    mean = rows.mean(dim=0)
    _, sizes, directions = torch.linalg.svd(rows - mean, full_matrices=False)
    variances = sizes.square()
    shares = variances / variances.sum().clamp(min=torch.finfo(torch.float64).tiny)
    kept = min(count, int((shares > LEAST).sum()))
    directions = directions[:kept]
    largest = directions.abs().argmax(dim=1, keepdim=True)
    return Components(
        mean=mean,
        directions=directions * directions.gather(1, largest).sign(),
        shares=shares[:kept],
    )


# Exact t-SNE (van der Maaten and Hinton, 2008): points in the plane that keep their neighbours
# near.
#
# For a few thousand points at most: every step compares all pairs. Nothing is random: it starts
# from the two first principal components.

STEPS, EXAGGERATED = 1000, 250
EXAGGERATION = 12.0
START = 1e-4
"""Deviation of the initial positions: small, so that they fix nothing but directions."""


def tsne(
    rows: Float[Tensor, "n p"],
    *,
    perplexity: float = 30.0,
    steps: int = STEPS,
    watch: Callable[[int, int], None] | None = None,
) -> Float[Tensor, "n 2"]:
    """Positions of the rows in the plane; `perplexity` is about the number of neighbours.

    It can be at most a third of the other rows.
    """
    n = len(rows)
    if n < 2:
        return torch.zeros(n, 2, dtype=torch.float64)
    affinities = joint_affinities(rows, min(perplexity, max((n - 1) / 3, 1.0)))
    y = _start(rows)
    # In proportion to the rows (Belkina et al., 2019): forces between them shrink with their
    # number.
    rate = n / EXAGGERATION
    speed, gains = torch.zeros_like(y), torch.ones_like(y)
    for step in range(steps):
        early = step < EXAGGERATED
        gradient = divergence_gradient(affinities * (EXAGGERATION if early else 1.0), y)
        turned = gradient.sign() == speed.sign()
        gains = torch.where(turned, gains * 0.8, gains + 0.2).clamp(min=0.01)
        speed = (0.5 if early else 0.8) * speed - rate * gains * gradient
        y = y + speed
        y = y - y.mean(dim=0)
        if watch is not None:
            watch(step + 1, steps)
    return y


def joint_affinities(rows: Float[Tensor, "n p"], perplexity: float) -> Float[Tensor, "n n"]:
    """Symmetric affinities of all pairs of rows, summing to one."""
    rows = rows.detach().cpu().double()
    conditional = conditional_affinities(torch.cdist(rows, rows).square(), perplexity)
    return (conditional + conditional.T) / (2 * len(rows))


def conditional_affinities(
    squared: Float[Tensor, "n n"], perplexity: float
) -> Float[Tensor, "n n"]:
    """Gaussian weights of the others for each row, scaled to the given perplexity."""
    n = len(squared)
    own = torch.eye(n, dtype=torch.bool)
    # Shifted to a nearest distance of zero: the weights are the same, and never all vanish.
    distances = squared - squared.masked_fill(own, torch.inf).amin(dim=1, keepdim=True)
    wanted = torch.tensor(perplexity, dtype=torch.float64).log()
    low, high = torch.zeros(n, 1).double(), torch.full((n, 1), torch.inf).double()
    precision = 1 / distances.masked_fill(own, 0.0).sum(dim=1, keepdim=True).clamp(min=1e-12) * n
    for _ in range(64):
        weights = (-distances * precision).exp().masked_fill(own, 0.0)
        weights = weights / weights.sum(dim=1, keepdim=True)
        wide = torch.special.entr(weights).sum(dim=1, keepdim=True) > wanted
        low, high = torch.where(wide, precision, low), torch.where(wide, high, precision)
        middle = (low + high) / 2
        precision = torch.where(high.isinf(), precision * 2, middle)
    return weights


def divergence_gradient(
    affinities: Float[Tensor, "n n"], y: Float[Tensor, "n 2"]
) -> Float[Tensor, "n 2"]:
    """Gradient of KL(P | Q), Q being Student's t with one degree of freedom between the points."""
    near = 1 / (1 + torch.cdist(y, y).square())
    near.fill_diagonal_(0.0)
    pull = (affinities - near / near.sum()) * near
    return 4 * (pull.sum(dim=1, keepdim=True) * y - pull @ y)


def _start(rows: Float[Tensor, "n p"]) -> Float[Tensor, "n 2"]:
    components = principal_components(rows, 2)
    found = components.project(rows.detach().cpu())
    y = torch.zeros(len(rows), 2, dtype=torch.float64)
    y[:, : found.shape[1]] = found
    return y / y[:, :1].std(correction=0).clamp(min=1e-12) * START


# Linear CKA: similarity of two layers' features of the same images (arXiv:1905.00414).

LEAST_IMAGES = 4
"""Minimum number of images for the unbiased estimate."""


def linear_cka(layers: Float[Tensor, "L n p"]) -> Float[Tensor, "L L"]:
    """|YᵀX|² / (|XᵀX| |YᵀY|) of centred features, for every two layers.

    With fewer images than features it is too large, also for unrelated features.
    """
    centred = layers.double() - layers.double().mean(dim=1, keepdim=True)
    return _normalised(_inner(centred @ centred.mT))


def unbiased_cka(layers: Float[Tensor, "L n p"]) -> Float[Tensor, "L L"]:
    """Linear CKA with the unbiased estimate of HSIC (arXiv:2010.15327, equation 3), n from 4 on.

    Around zero, and also below, for unrelated features.
    """
    x = layers.double()
    n = x.shape[1]
    if n < LEAST_IMAGES:
        raise ValueError(f"{n} images; unbiased CKA needs at least {LEAST_IMAGES}")
    # Constant features have no effect, and centring them keeps the sums below small.
    x = x - x.mean(dim=1, keepdim=True)
    grams = x @ x.mT
    grams.diagonal(dim1=-2, dim2=-1).zero_()
    rows, totals = grams.sum(dim=-1), grams.sum(dim=(-2, -1))
    hsic = (
        _inner(grams)
        + totals[:, None] * totals / ((n - 1) * (n - 2))
        - 2 / (n - 2) * (rows @ rows.T)
    ) / (n * (n - 3))
    return _normalised(hsic)


def _inner(grams: Float[Tensor, "L n n"]) -> Float[Tensor, "L L"]:
    return einsum(grams, grams, "l i j, m i j -> l m")


def _normalised(hsic: Float[Tensor, "L L"]) -> Float[Tensor, "L L"]:
    """Normalise HSIC; NaN for layers with identical features for all images."""
    own = hsic.diagonal()
    size = torch.where(own > 0, own, torch.nan).sqrt()
    return hsic / size[:, None] / size
