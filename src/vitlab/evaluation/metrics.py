"""Accuracy of a classifier: counts with every image once, and metrics derived from them."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from vitlab.errors import InputError, NotFinite

TOP = 5
Z95 = 1.959963984540054
"""Standard deviations around the mean of a normal that hold 95 % of it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ClassMetrics:
    """Metrics of one class; a ratio whose denominator is zero is None."""

    label: str
    precision: float | None
    """Share of the images predicted as this class that belong to it."""
    recall: float | None
    """Share of the images of this class that are predicted as it."""
    f1: float | None
    support: int
    """Number of images of this class."""


class Tally:
    """Counts over batches; a repeated image, such as padding, is counted once."""

    def __init__(self, classes: int) -> None:
        self.top = min(TOP, classes)
        self.confusion: Int[Tensor, "classes classes"] = torch.zeros(classes, classes).long()
        """Images by true class (row) and predicted class (column)."""
        self._loss = 0.0
        self._in_top = 0
        self._seen: set[int] = set()

    def add(
        self,
        logits: Float[Tensor, "B classes"],
        labels: Int[Tensor, " B"],
        index: Int[Tensor, " B"],
    ) -> None:
        """Count the images of a batch that were not counted yet, identified by `index`."""
        new = self._unseen(index)
        logits, labels = logits[new].cpu().double(), labels[new].cpu().long()
        check_finite(logits)
        self.confusion += confusion_matrix(logits.argmax(dim=1), labels, len(self.confusion))
        self._in_top += int((ranks(logits, labels) < self.top).sum())
        self._loss += float(F.cross_entropy(logits, labels, reduction="sum"))

    @property
    def images(self) -> int:
        """Number of different images counted."""
        return len(self._seen)

    @property
    def correct(self) -> int:
        """Number of images whose most likely class is the true one."""
        return int(self.confusion.diagonal().sum())

    @property
    def accuracy(self) -> float:
        """Share of the images whose most likely class is the true one."""
        return self.correct / self._counted()

    @property
    def top5(self) -> float:
        """Share of the images whose true class is among the `top` most likely."""
        return self._in_top / self._counted()

    @property
    def loss(self) -> float:
        """Mean cross-entropy, in nats."""
        return self._loss / self._counted()

    def _counted(self) -> int:
        if not self._seen:
            raise InputError("no image was counted; valid: at least 1")
        return self.images

    def _unseen(self, index: Int[Tensor, " B"]) -> Bool[Tensor, " B"]:
        new = []
        for number in index.tolist():
            new.append(number not in self._seen)
            self._seen.add(number)
        return torch.tensor(new, dtype=torch.bool, device=index.device)


def check_finite(logits: Float[Tensor, "B classes"]) -> None:
    """Raise for logits that are not finite, as diverged weights give."""
    wrong = int((~logits.isfinite()).any(dim=1).sum())
    if wrong:
        raise NotFinite(f"{wrong} of {len(logits)} images have logits that are not finite")


def ranks(logits: Float[Tensor, "B classes"], labels: Int[Tensor, " B"]) -> Int[Tensor, " B"]:
    """Number of classes ranked before the true one; ties go to the first, as in `argmax`."""
    own = logits.gather(1, labels[:, None])
    classes = torch.arange(logits.shape[1], device=logits.device)
    before = (logits > own) | ((logits == own) & (classes < labels[:, None]))
    return before.sum(dim=1)


def confusion_matrix(
    predicted: Int[Tensor, " B"], labels: Int[Tensor, " B"], classes: int
) -> Int[Tensor, "classes classes"]:
    """Number of images by true class (row) and predicted class (column)."""
    flat = torch.bincount(labels * classes + predicted, minlength=classes * classes)
    return flat.reshape(classes, classes)


def per_class(
    confusion: Int[Tensor, "classes classes"], labels: Sequence[str]
) -> tuple[ClassMetrics, ...]:
    """Precision, recall, F1 and support of every class."""
    right = confusion.diagonal().tolist()
    support, called = confusion.sum(dim=1).tolist(), confusion.sum(dim=0).tolist()
    return tuple(
        ClassMetrics(
            label=label,
            precision=_ratio(right[i], called[i]),
            recall=_ratio(right[i], support[i]),
            f1=_ratio(2 * right[i], support[i] + called[i]),
            support=support[i],
        )
        for i, label in enumerate(labels)
    )


def mean_over_classes(values: Sequence[float | None]) -> float | None:
    """Mean of the defined values, with all classes weighted equally."""
    defined = [value for value in values if value is not None]
    return sum(defined) / len(defined) if defined else None


def wilson(successes: int, total: int, z: float = Z95) -> tuple[float, float]:
    """Interval of the true rate with 95 % confidence: Wilson, 1927."""
    if not 0 <= successes <= total:
        raise ValueError(f"{successes} successes of {total}; valid: 0 to {total}")
    if total == 0:
        return 0.0, 1.0
    rate, room = successes / total, z * z / total
    centre = (rate + room / 2) / (1 + room)
    half = z * math.sqrt(rate * (1 - rate) / total + room / (4 * total)) / (1 + room)
    # At the ends the bound is exact; rounding must not move it past the rate.
    low = 0.0 if successes == 0 else max(0.0, centre - half)
    return low, 1.0 if successes == total else min(1.0, centre + half)


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None


# Bootstrap intervals: variation of a metric over other images of the same kind.

DRAWS = 1000
BUSY = 10_000_000
"""Approximate total of drawn numbers; large sets need fewer draws."""
LEAST_DRAWS = 100
SHARE = 0.95


def bootstrap_interval(
    figure: Callable[[NDArray[np.int64]], float], images: int, *, columns: int = 1
) -> tuple[float, float]:
    """Central 95 % of a metric over draws of rows with replacement (Efron, 1979); deterministic."""
    draw = np.random.default_rng(0)
    draws = max(LEAST_DRAWS, min(DRAWS, BUSY // (images * columns)))
    found = [figure(draw.integers(images, size=images)) for _ in range(draws)]
    tail = (1 - SHARE) / 2
    low, high = np.quantile(np.array(found), [tail, 1 - tail])
    return float(low), float(high)


# Metrics as text.


def share_text(part: float | None) -> str:
    """Percentage, or a dash for an undefined ratio."""
    return "-" if part is None else f"{part:.1%}"


def number_text(value: float | None) -> str:
    """Number with four digits, or a dash for an undefined one."""
    return "-" if value is None else f"{value:.4g}"


def between(interval: Sequence[float] | None, write: Callable[[float], str] = number_text) -> str:
    """Interval in parentheses, or nothing."""
    if interval is None:
        return ""
    low, high = interval
    return f" (95% interval {write(low)} to {write(high)})"
