"""Principal components, with a sign that does not depend on the solver."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

LEAST = 1e-12
"""Share of the variance below which a direction is rounding."""


@dataclass(frozen=True, eq=False)
class Components:
    """The directions in which rows differ most, the first one most of all."""

    mean: Float[Tensor, " p"]
    directions: Float[Tensor, "k p"]
    """Of length one; the entry of largest size is positive."""
    shares: Float[Tensor, " k"]
    """Of the variance of all rows."""

    def project(self, rows: Float[Tensor, "*n p"]) -> Float[Tensor, "*n k"]:
        """The coordinates of rows along the directions."""
        return (rows.double() - self.mean) @ self.directions.T


def principal_components(rows: Float[Tensor, "n p"], count: int) -> Components:
    """Up to `count` of them, in float64; fewer where the rows span fewer."""
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
