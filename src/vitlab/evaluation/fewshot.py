"""Few-shot accuracy of frozen features: arXiv:2010.11929, section 4.1.

Every choice of a method is made by leaving out training images; the test images are evaluated once,
with everything decided.
"""

import math
import statistics
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vitlab.errors import DataError, InputError, UnknownName
from vitlab.evaluation import logistic, ridge
from vitlab.evaluation.logistic import fit_logistic
from vitlab.evaluation.metrics import Z95
from vitlab.evaluation.neighbours import Neighbours
from vitlab.evaluation.ridge import LeastSquares

T95 = (
    (12.706205, 4.302653, 3.182446, 2.776445, 2.570582, 2.446912, 2.364624, 2.306004, 2.262157)
    + (2.228139, 2.200985, 2.178813, 2.160369, 2.144787, 2.131450, 2.119905, 2.109816, 2.100922)
    + (2.093024, 2.085963, 2.079614, 2.073873, 2.068658, 2.063899, 2.059539, 2.055529, 2.051831)
    + (2.048407, 2.045230, 2.042272)
)
"""Student's t: deviations around the mean that hold 95 %, for 1, 2, … degrees of freedom."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Labelled:
    """Features of images and their classes."""

    features: Float[Tensor, "N D"]
    labels: Int[Tensor, " N"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """Result of one method on one draw."""

    accuracy: float
    setting: float
    """Strength of regularisation, or number of neighbours."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    """A method at a number of shots, over all draws."""

    method: str
    shots: int
    accuracies: tuple[float, ...]
    settings: tuple[float, ...]
    """Choice of each draw: strength of regularisation, or number of neighbours."""

    @property
    def mean(self) -> float:
        """Mean accuracy."""
        return statistics.fmean(self.accuracies)

    @property
    def interval(self) -> tuple[float, float] | None:
        """95 % interval of the mean over draws; None for a single draw."""
        return mean_interval(self.accuracies)


Method = Callable[[Labelled, int, Labelled], Answer]
"""Function of training images, number of classes, and test images."""


def least_squares(train: Labelled, classes: int, test: Labelled) -> Answer:
    """Linear least squares: the paper's protocol."""
    fits = LeastSquares(train.features, train.labels, classes)
    l2 = fits.best_strength() if _can_leave_out(train, classes) else ridge.DEFAULT_L2
    return Answer(accuracy=_accuracy(fits.scores(test.features, l2), test), setting=l2)


def nearest_neighbours(train: Labelled, classes: int, test: Labelled) -> Answer:
    """Vote of the most similar images."""
    known = Neighbours(train.features, train.labels, classes)
    count = known.best_count()
    return Answer(accuracy=_accuracy(known.scores(test.features, count), test), setting=count)


def logistic_regression(train: Labelled, classes: int, test: Labelled) -> Answer:
    """Logistic regression, as a linear probe."""
    features, labels, l2 = train.features, train.labels, logistic.DEFAULT_L2
    if _can_leave_out(train, classes):
        l2 = logistic.best_strength(features, labels, classes)
    fit = fit_logistic(features, labels, classes, l2=l2)
    return Answer(accuracy=_accuracy(fit.scores(test.features), test), setting=l2)


METHODS: dict[str, Method] = {
    "least-squares": least_squares,
    "knn": nearest_neighbours,
    "logistic": logistic_regression,
}


def draw_shots(
    labels: Int[Tensor, " N"],
    classes: Sequence[str],
    shots: int,
    *,
    generator: torch.Generator,
    without: Collection[int] = (),
) -> Int[Tensor, "classes shots"]:
    """Random images of each class; fewer shots of the same generator are the first of these."""
    chosen = []
    for number, name in enumerate(classes):
        members = (labels == number).nonzero()[:, 0]
        order = members[torch.randperm(len(members), generator=generator)].tolist()
        order = [image for image in order if image not in without]
        if len(order) < shots:
            raise DataError(
                f"class {name!r} has {len(order)} readable training images, too few for "
                f"{shots} shots; valid: at most {len(order)}"
            )
        chosen.append(order[:shots])
    return torch.tensor(chosen)


def check_request(shots: Sequence[int], draws: int, methods: Iterable[str]) -> None:
    """Raise for invalid numbers and names."""
    if not shots or min(shots) < 1 or len(set(shots)) < len(shots):
        raise InputError(f"shots {list(shots)}; valid: different numbers from 1")
    if draws < 1:
        raise InputError(f"draws {draws}; valid: at least 1")
    for method in methods:
        if method not in METHODS:
            raise UnknownName("method", method, METHODS)


def mean_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """95 % interval of the mean of accuracies, by Student's t; None for a single value."""
    if len(values) < 2:
        return None
    half = student(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    mean = statistics.fmean(values)
    return max(0.0, mean - half), min(1.0, mean + half)


def student(freedom: int) -> float:
    """Deviations around the mean that hold 95 % of Student's t."""
    if freedom <= len(T95):
        return T95[freedom - 1]
    # Cornish and Fisher's series: from here on the next term is below 2e-6.
    z, n = Z95, freedom
    first = (z**3 + z) / (4 * n)
    second = (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
    return z + first + second + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3)


def _can_leave_out(train: Labelled, classes: int) -> bool:
    return int(torch.bincount(train.labels, minlength=classes).min()) > 1


def _accuracy(scores: Float[Tensor, "N classes"], test: Labelled) -> float:
    return float((scores.argmax(dim=1) == test.labels).double().mean())
