"""Evaluate a classifier on a whole data set: predictions for every image, and metrics."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from vitlab.config import to_dict
from vitlab.data.images import Labels
from vitlab.errors import InputError
from vitlab.evaluation.calibration import Reliability, Temperature, reliability
from vitlab.evaluation.distributed import computed, inference
from vitlab.evaluation.metrics import (
    ClassMetrics,
    Tally,
    mean_over_classes,
    per_class,
    ranks,
    share_text,
    wilson,
)
from vitlab.models.vit import logits_of
from vitlab.objectives.objective import Table

Batches = Iterable[tuple[Tensor, Tensor, Tensor]]
"""Images `[B, C, H, W]` ready for the model, labels, and the index of each image `[B]`."""
CHUNK = 4096
"""Number of images whose logits are processed in float64 at once."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Outcome:
    """Predictions for every image, in the order of the data set."""

    logits: Float[Tensor, "B classes"]
    labels: Labels
    index: Int[Tensor, " B"]
    """Index of each row's image in the data set; increasing, so that none occurs twice."""

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def right(self) -> tuple[bool, ...] | None:
        """True where the first guess is right, per image; None without a single label per image."""
        if self.labels.ndim != 1:
            return None
        return tuple((ranks(self.logits, self.labels) == 0).tolist())


@dataclass(frozen=True, kw_only=True)
class Scaled:
    """Effect of dividing the logits by a temperature."""

    temperature: Temperature
    loss: float
    reliability: Reliability


@dataclass(frozen=True, kw_only=True, eq=False)
class Evaluation:
    """Metrics of the predictions."""

    task: ClassVar[str] = "single-label"
    images: int
    labels: tuple[str, ...]
    accuracy: float
    interval: tuple[float, float]
    """95 % confidence interval of `accuracy` over other images of the same kind."""
    top5: float
    top: int
    """5, or the number of classes if smaller: the k of `top5`."""
    loss: float
    classes: tuple[ClassMetrics, ...]
    confusion: Int[Tensor, "classes classes"]
    """Images by true class (row) and predicted class (column)."""
    reliability: Reliability
    scaled: Scaled | None = None

    @property
    def balanced(self) -> float | None:
        """Mean recall of the classes, equally weighted."""
        return mean_over_classes([item.recall for item in self.classes])

    @property
    def macro_f1(self) -> float | None:
        """Mean F1 of the classes that have images, equally weighted."""
        return mean_over_classes([item.f1 for item in self.classes if item.support])

    @property
    def figures(self) -> dict[str, float]:
        """Main metrics by name."""
        return {"accuracy": self.accuracy, "loss": self.loss}

    @property
    def headline(self) -> str:
        """One line with the accuracy and its interval."""
        low, high = self.interval
        return f"accuracy {self.accuracy:.2%} ({low:.1%} to {high:.1%}, {self.images:,} images)"

    @property
    def lines(self) -> list[tuple[str, str]]:
        """Names and values of the metrics, as text."""
        low, high = self.interval
        shown = [("accuracy", f"{self.accuracy:.2%} (95% interval {low:.2%} to {high:.2%})")]
        if self.top < len(self.labels):
            shown.append((f"top-{self.top}", f"{self.top5:.2%}"))
        shown += [
            ("balanced accuracy", f"{self.balanced:.2%}"),
            ("loss", f"{self.loss:.4f}"),
            ("calibration error", f"{self.reliability.ece:.2%}"),
        ]
        if self.scaled is not None:
            scaled, ece = self.scaled, self.scaled.reliability.ece
            images = f"{scaled.temperature.images:,} held-out images"
            shown += [
                ("temperature", f"{scaled.temperature.value:.3f} (fitted on {images})"),
                ("with it", f"loss {scaled.loss:.4f}, calibration error {ece:.2%}"),
            ]
        return shown

    @property
    def table(self) -> Table:
        """Metrics of each class that has images."""
        present = [item for item in self.classes if item.support]
        shares = [(item.precision, item.recall, item.f1) for item in present]
        return Table(
            columns=("class", "precision", "recall", "F1", "images"),
            rows=tuple(
                (item.label, *map(share_text, parts), str(item.support))
                for item, parts in zip(present, shares, strict=True)
            ),
            strength=tuple(item.f1 or 0.0 for item in present),
        )

    def to_dict(self) -> dict[str, Any]:
        """All values, as JSON-serialisable types."""
        return {
            "images": self.images,
            "accuracy": self.accuracy,
            "interval": list(self.interval),
            "top5": self.top5,
            "top": self.top,
            "loss": self.loss,
            "balanced": self.balanced,
            "macro_f1": self.macro_f1,
            "classes": [to_dict(item) for item in self.classes],
            "confusion": self.confusion.tolist(),
            "reliability": self.reliability.to_dict(),
            "scaled": None
            if self.scaled is None
            else {
                "temperature": to_dict(self.scaled.temperature),
                "loss": self.scaled.loss,
                "reliability": self.scaled.reliability.to_dict(),
            },
        }


@dataclass(frozen=True, kw_only=True)
class Evaluator:
    """Loss and accuracy of one split, for monitoring in a training run."""

    batches: Callable[[], Batches]
    classes: int
    balanced: bool = False
    """Report the mean recall of the classes too."""

    def run(self, model: nn.Module) -> Iterator[tuple[str, float]]:
        """Evaluate once, and yield `loss`, `accuracy` and, with more than 5 classes, `top5`."""
        tally = Tally(self.classes)
        for logits, labels, index in _answers(model, self.batches()):
            tally.add(logits, labels, index)
        yield "loss", tally.loss
        yield "accuracy", tally.accuracy
        if self.balanced:
            recalls = [item.recall for item in per_class(tally.confusion, [""] * self.classes)]
            yield "balanced", mean_over_classes(recalls) or 0.0
        if tally.top < self.classes:
            yield "top5", tally.top5


def collect(model: nn.Module, batches: Batches) -> Outcome:
    """Logits for every image once, for any order and size of the batches."""
    return _outcome(_answers(model, batches))


def collect_flipped(model: nn.Module, batches: Batches) -> tuple[Outcome, Outcome]:
    """Same as `collect`, with logits averaged over each image and its mirror image."""
    pairs = list(_answers(model, batches, flip=True))
    plain = ((logits[:, 0], labels, index) for logits, labels, index in pairs)
    averaged = ((logits.mean(dim=1), labels, index) for logits, labels, index in pairs)
    return _outcome(plain), _outcome(averaged)


def _outcome(answers: Iterable[tuple[Tensor, ...]]) -> Outcome:
    parts = list(zip(*answers, strict=True))
    if not parts:
        raise InputError("no image to evaluate; valid: at least 1")
    logits, labels, index = map(torch.cat, parts)
    order = torch.argsort(index, stable=True)
    index = index[order]
    first = torch.ones_like(index, dtype=torch.bool)
    first[1:] = index[1:] != index[:-1]
    kept = order[first]
    return Outcome(logits=logits[kept], labels=labels[kept], index=index[first])


def evaluate(
    outcome: Outcome, labels: Sequence[str], *, temperature: Temperature | None = None
) -> Evaluation:
    """Metrics of the predictions; a temperature must come from other, held-out images."""
    classes = outcome.logits.shape[1]
    if len(labels) != classes:
        raise InputError(f"{len(labels)} labels for logits of {classes} classes")
    tally = Tally(classes)
    for rows in torch.arange(len(outcome)).split(CHUNK):
        tally.add(outcome.logits[rows], outcome.labels[rows], outcome.index[rows])
    return Evaluation(
        images=tally.images,
        labels=tuple(labels),
        accuracy=tally.accuracy,
        interval=wilson(tally.correct, tally.images),
        top5=tally.top5,
        top=tally.top,
        loss=tally.loss,
        classes=per_class(tally.confusion, labels),
        confusion=tally.confusion,
        reliability=calibration_of(outcome),
        scaled=None if temperature is None else _scaled(outcome, temperature),
    )


def calibration_of(outcome: Outcome, temperature: float = 1.0) -> Reliability:
    """Reliability table of the probabilities at a temperature."""
    confidence = _confidence(outcome, temperature)
    return reliability(confidence, outcome.logits.argmax(dim=1) == outcome.labels)


def confident_mistakes(outcome: Outcome, count: int) -> Int[Tensor, " rows"]:
    """Rows of the outcome that are wrong, the most confident first."""
    confidence = _confidence(outcome)
    wrong = (outcome.logits.argmax(dim=1) != outcome.labels).nonzero()[:, 0]
    return wrong[torch.argsort(confidence[wrong], descending=True, stable=True)[:count]]


def _answers(
    model: nn.Module, batches: Batches, *, flip: bool = False
) -> Iterator[tuple[Tensor, ...]]:
    """Logits, labels and indices, batch by batch, in memory; `model` is left unchanged.

    With `flip`, the logits of the images and of their mirror images: `[B, 2, classes]`.
    """
    training, answer = model.training, logits_of(model)

    def compute(batch: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        images, labels, index = batch
        with inference(model):
            logits = answer(images)
            if flip:
                logits = torch.stack([logits, answer(images.flip(-1))], dim=1)
        return logits.float().cpu(), labels.cpu(), index.cpu()

    model.eval()
    try:
        yield from computed(batches, compute)
    finally:
        model.train(training)


def _confidence(outcome: Outcome, temperature: float = 1.0) -> Float[Tensor, " B"]:
    """Probability of the predicted class."""
    chunks = outcome.logits.split(CHUNK)
    return torch.cat([(part.double() / temperature).softmax(dim=1).amax(dim=1) for part in chunks])


def _scaled(outcome: Outcome, temperature: Temperature) -> Scaled:
    truth: Tensor = outcome.labels
    losses = [
        F.cross_entropy(logits.double() / temperature.value, labels, reduction="sum")
        for logits, labels in zip(outcome.logits.split(CHUNK), truth.split(CHUNK), strict=True)
    ]
    return Scaled(
        temperature=temperature,
        loss=float(sum(losses)) / len(outcome),
        reliability=calibration_of(outcome, temperature.value),
    )
