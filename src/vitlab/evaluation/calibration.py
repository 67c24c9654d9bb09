"""Calibration of a classifier, and temperature scaling: arXiv:1706.04599."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from vitlab.config import to_dict
from vitlab.errors import InputError
from vitlab.evaluation.metrics import check_finite

BINS = 15
LIMITS = (0.05, 20.0)
"""Temperatures beyond these mean only that the held-out images were too few or too easy."""
FOLDS = 5
NO_TEMPERATURE = "none: no improvement of the loss is certain on the held-out images"
"""Text in place of a temperature that is not reported."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bin:
    """The images whose confidence lies in (low, high]."""

    low: float
    high: float
    count: int
    confidence: float | None
    """Mean probability of the predicted class; None in an empty bin."""
    accuracy: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Reliability:
    """Confidence against accuracy, bin by bin."""

    bins: tuple[Bin, ...]

    @property
    def ece(self) -> float:
        """Expected calibration error: |accuracy - confidence| of an image's bin, on average."""
        total = sum(item.count for item in self.bins)
        gaps = (item.count * _gap(item) for item in self.bins)
        return sum(gaps) / total if total else 0.0

    def to_dict(self) -> dict[str, Any]:
        """All values, as JSON-serialisable types."""
        return {"ece": self.ece, **to_dict(self)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Temperature:
    """Divisor of the logits, and the number of held-out images it was fitted on."""

    value: float
    images: int


def reliability(
    confidence: Float[Tensor, " B"], correct: Bool[Tensor, " B"], bins: int = BINS
) -> Reliability:
    """The reliability table over equal-width bins of confidence."""
    confidence, right = confidence.cpu().double(), correct.cpu().double()
    edges = torch.linspace(0, 1, bins + 1, dtype=torch.float64)
    at = torch.bucketize(confidence, edges[1:-1])  # (low, high]
    counts = torch.bincount(at, minlength=bins).tolist()
    confidences = torch.bincount(at, confidence, minlength=bins).tolist()
    rights = torch.bincount(at, right, minlength=bins).tolist()
    return Reliability(
        bins=tuple(
            Bin(
                low=float(edges[i]),
                high=float(edges[i + 1]),
                count=count,
                confidence=confidences[i] / count if count else None,
                accuracy=rights[i] / count if count else None,
            )
            for i, count in enumerate(counts)
        )
    )


def fit_temperature(
    logits: Float[Tensor, "B classes"], labels: Int[Tensor, " B"], *, steps: int = 100
) -> Temperature:
    """Divisor of the logits with the least cross-entropy on images held out from training.

    The loss is convex in 1 / temperature, so Newton's steps inside a shrinking bracket find it.
    """
    if not len(logits):
        raise InputError("no image to fit a temperature on; valid: at least 1")
    logits, labels = logits.cpu().double(), labels.cpu().long()
    check_finite(logits)
    low, high = 1 / LIMITS[1], 1 / LIMITS[0]
    if _slope(logits, labels, low)[0] >= 0:
        return Temperature(value=1 / low, images=len(logits))
    if _slope(logits, labels, high)[0] <= 0:
        return Temperature(value=1 / high, images=len(logits))
    inverse = 1.0
    for _ in range(steps):
        slope, curvature = _slope(logits, labels, inverse)
        low, high = (inverse, high) if slope < 0 else (low, inverse)
        step = inverse - slope / curvature if curvature > 0 else low
        step = step if low < step < high else (low + high) / 2
        if abs(step - inverse) <= 1e-12 * inverse:
            break
        inverse = step
    return Temperature(value=1 / inverse, images=len(logits))


def helpful_temperature(
    logits: Float[Tensor, "B classes"], labels: Int[Tensor, " B"]
) -> Temperature | None:
    """The fitted temperature, or None unless it lowers the loss of images it was not fitted on.

    Each fold of the images is scaled by a temperature fitted on the other folds. The 95 % interval
    of the mean difference in loss must lie above zero. A fit at one of `LIMITS` does not count.
    """
    found = fit_temperature(logits, labels)
    limits = any(math.isclose(found.value, limit, rel_tol=1e-6) for limit in LIMITS)
    if limits or len(logits) < 2 * FOLDS:
        return None
    logits, labels = logits.cpu().double(), labels.cpu().long()
    fold = torch.arange(len(logits)) % FOLDS
    values = [fit_temperature(logits[fold != i], labels[fold != i]).value for i in range(FOLDS)]
    scaled = logits / torch.tensor(values, dtype=torch.float64)[fold, None]
    before, after = (F.cross_entropy(x, labels, reduction="none") for x in (logits, scaled))
    gain = before - after
    low = float(gain.mean() - 1.96 * gain.std() / math.sqrt(len(gain)))
    return found if low > 0 else None


def _slope(
    logits: Float[Tensor, "B classes"], labels: Int[Tensor, " B"], inverse: float
) -> tuple[float, float]:
    """First and second derivative of the mean cross-entropy by the inverse temperature."""
    p = (logits * inverse).softmax(dim=1)
    expected = (p * logits).sum(dim=1)
    variance = (p * (logits - expected[:, None]).square()).sum(dim=1)
    own = logits.gather(1, labels[:, None])[:, 0]
    return float((expected - own).mean()), float(variance.mean())


def _gap(item: Bin) -> float:
    if item.accuracy is None or item.confidence is None:
        return 0.0
    return abs(item.accuracy - item.confidence)
