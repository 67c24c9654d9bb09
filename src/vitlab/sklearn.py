"""A scikit-learn estimator: `fit`, `predict`, `predict_proba` and `score` of a fine-tuned ViT."""

import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vitlab.classify.classifier import Classifier, load
from vitlab.errors import InputError, MissingExtra
from vitlab.jobs.finetune import finetune

try:
    from sklearn.base import BaseEstimator, ClassifierMixin
except ImportError:

    class ClassifierMixin:  # type: ignore[no-redef]
        """Stands in for scikit-learn's class where the extra is missing."""

        def __new__(cls, *args: Any, **options: Any) -> Any:
            raise MissingExtra("sklearn", "vitlab.sklearn")

    class BaseEstimator:  # type: ignore[no-redef]
        """Stands in for scikit-learn's class where the extra is missing."""


class ViTClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # sklearn is untyped
    """Fine-tunes `weights` on images [N, H, W, C] or [N, H, W], 8 bits or from 0 to 1."""

    def __init__(
        self,
        weights: str | os.PathLike[str] = "cifar10",
        *,
        minutes: float | None = None,
        steps: int | None = None,
        seed: int = 0,
        linear_probe: bool = False,
    ) -> None:
        """`minutes` or `steps` limit the training; None: as `vitlab.finetune` does."""
        self.weights = weights
        self.minutes = minutes
        self.steps = steps
        self.seed = seed
        self.linear_probe = linear_probe

    def fit(self, X: ArrayLike, y: ArrayLike) -> "ViTClassifier":
        """Fine-tune on the images; a part of them is held out to choose the best step."""
        images, labels = np.asarray(X), np.asarray(y)
        if images.ndim not in (3, 4):
            raise InputError(f"X of shape {images.shape}; valid: [N, H, W, C] or [N, H, W]")
        self.classes_, numbers = np.unique(labels, return_inverse=True)
        names = [str(number) for number in range(len(self.classes_))]
        data = {"train": (images, numbers), "test": (images, numbers), "labels": names}
        with tempfile.TemporaryDirectory(prefix="vitlab-") as folder:
            run = Path(folder, "run")
            finetune(
                self.weights,
                data=data,
                out=run,
                new_head=True,
                linear_probe=self.linear_probe,
                changes=self._changes(),
            )
            self.classifier_: Classifier = load(run)
        return self

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """Probability of each class in `classes_`."""
        if not hasattr(self, "classifier_"):
            from sklearn.exceptions import NotFittedError

            raise NotFittedError("this ViTClassifier is not fitted yet; call fit first")
        images = np.asarray(X)
        if images.dtype != np.uint8:
            images = (images * 255).round().astype(np.uint8)
        found = np.zeros((len(images), len(self.classes_)))
        answers = self.classifier_.predict(list(images), top=len(self.classes_))
        for row, answer in zip(found, answers, strict=True):
            for label, probability in answer.top:
                row[int(label)] = probability
        return found

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Most likely class of each image."""
        best = self.predict_proba(X).argmax(axis=1)
        found: NDArray[Any] = self.classes_[best]
        return found

    def _changes(self) -> dict[str, Any]:
        if self.minutes is not None and self.steps is not None:
            raise InputError(f"minutes {self.minutes} and steps {self.steps}; valid: one of them")
        changes: dict[str, Any] = {"seed": self.seed}
        if self.minutes is not None:
            changes |= {"budget": self.minutes, "budget_in": "minutes"}
        if self.steps is not None:
            changes |= {"budget": self.steps, "budget_in": "steps"}
        return changes
