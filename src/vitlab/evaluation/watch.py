"""Metrics monitored on held-out images in training, for tasks other than classification."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from vitlab.evaluation.classification import Batches, collect
from vitlab.evaluation.metrics import check_finite
from vitlab.evaluation.multilabel import label_loss, mean_average_precision
from vitlab.evaluation.regression import coefficient


@dataclass(frozen=True, kw_only=True)
class LabelWatch:
    """Loss and mean average precision of labels."""

    batches: Callable[[], Batches]

    def run(self, model: nn.Module) -> Iterator[tuple[str, float]]:
        """Evaluate once, and yield `loss` and `map`."""
        outcome = collect(model, self.batches())
        check_finite(outcome.logits)
        yield "loss", label_loss(outcome)
        yield (
            "map",
            mean_average_precision(outcome.logits.double().numpy(), outcome.labels.numpy()),
        )


@dataclass(frozen=True, kw_only=True)
class ValueWatch:
    """Errors of values that the model predicts standardised."""

    batches: Callable[[], Batches]
    mean: Float[Tensor, " values"]
    std: Float[Tensor, " values"]

    def run(self, model: nn.Module) -> Iterator[tuple[str, float]]:
        """Evaluate once, and yield `loss` as trained, `mae` in the unit, and `r2`."""
        outcome = collect(model, self.batches())
        check_finite(outcome.logits)
        truth = outcome.labels.double()
        told = outcome.logits.double() * self.std + self.mean
        yield "loss", float(F.mse_loss(told / self.std, truth / self.std))
        yield "mae", float((told - truth).abs().mean())
        columns = zip(told.unbind(1), truth.unbind(1), strict=True)
        found = [coefficient(a.numpy(), b.numpy()) or 0.0 for a, b in columns]
        yield "r2", sum(found) / len(found)
