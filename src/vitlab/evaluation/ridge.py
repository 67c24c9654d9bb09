"""Regularised least squares from features to targets in {-1, 1}: arXiv:2010.11929, section 4.1.

Solved in closed form, with the choices of the authors' later code: features are standardised by the
training images, and a large constant feature gives a bias that is hardly regularised.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

BIAS = 100.0
"""Value of the constant feature."""
DEVIATION_FLOOR = 1e-5
DEFAULT_L2 = 2.0**10
"""Strength used when no images can be left out to choose it: the authors' setting."""
STRENGTHS = tuple(2.0**power for power in range(-6, 21, 2))


@dataclass(frozen=True, kw_only=True, eq=False)
class Standard:
    """Mean and deviation of the features of the training images."""

    mean: Float[Tensor, " D"]
    deviation: Float[Tensor, " D"]

    def apply(self, features: Float[Tensor, "N D"]) -> Float[Tensor, "N D"]:
        """Features of mean 0 and deviation 1 on the training images, in float64."""
        return (features.double() - self.mean) / self.deviation


def standard(features: Float[Tensor, "N D"]) -> Standard:
    """Standardisation fitted to these features."""
    deviation, mean = torch.std_mean(features.double(), dim=0, correction=0)
    return Standard(mean=mean, deviation=deviation + DEVIATION_FLOOR)


class LeastSquares:
    """The fits of every strength at once, from one decomposition of the smaller Gram matrix."""

    def __init__(
        self, features: Float[Tensor, "N D"], labels: Int[Tensor, " N"], classes: int
    ) -> None:
        self._standard = standard(features)
        x = self._inputs(features)
        self._targets = 2.0 * F.one_hot(labels, classes).double() - 1.0
        few = len(x) < x.shape[1]
        spectrum, basis = torch.linalg.eigh(x @ x.mT if few else x.mT @ x)
        self._spectrum = spectrum.clamp(min=0.0)
        # Weights are `_out @ (_into / (spectrum + l2))`, predictions on the training images `x @`
        # them.
        self._into = basis.mT @ (self._targets if few else x.mT @ self._targets)
        self._out = x.mT @ basis if few else basis
        self._inside = basis * self._spectrum if few else x @ basis
        self._across = basis if few else self._inside

    def scores(self, features: Float[Tensor, "N D"], l2: float) -> Float[Tensor, "N classes"]:
        """Scores of images from the fit of this strength; the highest is the class."""
        weights = self._out @ (self._into / (self._spectrum + l2)[:, None])
        return self._inputs(features) @ weights

    def left_out(self, l2: float) -> Float[Tensor, "N classes"]:
        """Scores of each training image from the fit to all others; the mean stays that of all."""
        shrunk = 1.0 / (self._spectrum + l2)
        fitted = self._inside @ (self._into * shrunk[:, None])
        own = (self._inside * self._across) @ shrunk
        return self._targets - (self._targets - fitted) / (1.0 - own)[:, None]

    def best_strength(self) -> float:
        """Strength with the least leave-one-out squared error."""
        errors = [float((self.left_out(l2) - self._targets).square().mean()) for l2 in STRENGTHS]
        return STRENGTHS[errors.index(min(errors))]

    def _inputs(self, features: Float[Tensor, "N D"]) -> Float[Tensor, "N E"]:
        return F.pad(self._standard.apply(features), (0, 1), value=BIAS)
