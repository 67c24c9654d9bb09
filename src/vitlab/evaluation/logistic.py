"""Multinomial logistic regression on standardised features, L2-regularised except for the bias."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from vitlab.evaluation.ridge import Standard, standard

DEFAULT_L2 = 1.0
"""Strength used when no images can be left out to choose it."""
STRENGTHS = (1000.0, 100.0, 10.0, 1.0, 0.1, 0.01)
"""Strong to weak: each fit starts from the previous one."""
FOLDS = 5
STEPS = 500


@dataclass(frozen=True, kw_only=True, eq=False)
class Logistic:
    """A fit: standardisation, weights, and the bias in their last row."""

    inputs: Standard
    weights: Float[Tensor, "E classes"]

    def scores(self, features: Float[Tensor, "N D"]) -> Float[Tensor, "N classes"]:
        """Logits of the classes."""
        return self.inputs.apply(features) @ self.weights[:-1] + self.weights[-1]


def fit_logistic(
    features: Float[Tensor, "N D"],
    labels: Int[Tensor, " N"],
    classes: int,
    *,
    l2: float,
    start: Logistic | None = None,
) -> Logistic:
    """Minimise the summed cross-entropy plus l2/2 times the squared weights, by L-BFGS."""
    inputs = standard(features)
    x = inputs.apply(features)
    weights = x.new_zeros(x.shape[1] + 1, classes) if start is None else start.weights.clone()
    weights.requires_grad_()
    optimizer = torch.optim.LBFGS(
        [weights],
        max_iter=STEPS,
        history_size=20,
        tolerance_grad=1e-7,
        tolerance_change=1e-12,
        line_search_fn="strong_wolfe",
    )

    def loss() -> Tensor:
        optimizer.zero_grad()
        logits = x @ weights[:-1] + weights[-1]
        penalty = weights[:-1].square().sum() * (l2 / 2 / len(x))
        value = F.cross_entropy(logits, labels) + penalty
        value.backward()
        return value

    optimizer.step(loss)
    return Logistic(inputs=inputs, weights=weights.detach())


def best_strength(features: Float[Tensor, "N D"], labels: Int[Tensor, " N"], classes: int) -> float:
    """Strength with the least cross-entropy on held-out folds; every class needs two images."""
    place = _place_in_class(labels)
    folds = min(FOLDS, int(torch.bincount(labels, minlength=classes).min()))
    losses = dict.fromkeys(STRENGTHS, 0.0)
    for fold in range(folds):
        held = place % folds == fold
        fit = None
        for l2 in STRENGTHS:
            fit = fit_logistic(features[~held], labels[~held], classes, l2=l2, start=fit)
            scores = fit.scores(features[held])
            losses[l2] += float(F.cross_entropy(scores, labels[held], reduction="sum"))
    return min(losses, key=losses.__getitem__)


def _place_in_class(labels: Int[Tensor, " N"]) -> Int[Tensor, " N"]:
    """Number of earlier images of the same class, for each image."""
    order = torch.argsort(labels, stable=True)
    counts = torch.bincount(labels)
    first = (counts.cumsum(0) - counts)[labels[order]]
    place = torch.empty_like(labels)
    place[order] = torch.arange(len(labels)) - first
    return place
