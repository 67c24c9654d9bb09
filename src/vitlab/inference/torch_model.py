"""A model in torch that answers for pictures."""

import os
from typing import Any

import torch

from vitlab.inference.batch_size import check_weights
from vitlab.inference.classifier import Classifier, load
from vitlab.inference.predictor import Predictor
from vitlab.preprocessing import Preprocessing
from vitlab.weights.bundle_files import find_bundle
from vitlab.weights.labels import Labels
from vitlab.weights.names import locate
from vitlab.weights.network_digest import network_digest
from vitlab.weights.reading import SUFFIXES
from vitlab.weights.table import named


class TorchModel:
    """A classifier on the best device that there is."""

    engine = "torch"

    def __init__(
        self, model: str | os.PathLike[str], *, labels: Labels | None = None, **changes: Any
    ) -> None:
        check_weights(os.fspath(model), _stored_bytes(model))
        self.classifier = load(model, labels=labels, **changes)
        device = torch.accelerator.current_accelerator(check_available=True)
        self.classifier.model.to(device or torch.device("cpu"))

    @property
    def merge_tokens(self) -> int:
        """Tokens that are merged in each block."""
        return self.classifier.merge_tokens

    def require_preprocessing(self) -> Preprocessing:
        """How images are prepared; an error where nothing says it."""
        return self.classifier.preprocessing

    def predictor(
        self, *, batch_size: int | None = None, threshold: float | None = None
    ) -> Predictor:
        """What streams pictures through the model; None: batches that suit model and machine."""
        return self.classifier.predictor(batch_size=batch_size, threshold=threshold)

    def fingerprint(self) -> str:
        """The same for models that give the same answers in the same words."""
        return fingerprint(self.classifier)


def _stored_bytes(model: str | os.PathLike[str]) -> int:
    """Of the files that are about to be read; 0 where that is not known yet."""
    if named(model) is not None:
        return 0
    path = find_bundle(locate(model))
    files = path.glob("*") if path.is_dir() else (path,)
    return sum(file.stat().st_size for file in files if file.suffix in SUFFIXES and file.is_file())


def fingerprint(classifier: Classifier) -> str:
    """The same for models that give the same answers in the same words."""
    prepared = classifier.preprocessing.to_json()
    return network_digest(classifier.model, prepared, classifier.labels)
