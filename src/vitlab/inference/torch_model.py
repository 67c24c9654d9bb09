"""A model in torch that answers for pictures."""

import hashlib
import json
import os
from typing import Any

import torch

from vitlab.config import to_dict
from vitlab.inference.classifier import Classifier, load
from vitlab.inference.predictor import Predictor
from vitlab.preprocessing import Preprocessing
from vitlab.weights.labels import Labels


class TorchModel:
    """A classifier on the best device that there is."""

    engine = "torch"

    def __init__(
        self, model: str | os.PathLike[str], *, labels: Labels | None = None, **changes: Any
    ) -> None:
        self.classifier = load(model, labels=labels, **changes)
        device = torch.accelerator.current_accelerator(check_available=True)
        self.classifier.model.to(device or torch.device("cpu"))

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


def fingerprint(classifier: Classifier) -> str:
    """The same for models that give the same answers in the same words."""
    config = to_dict(classifier.model.config)
    facts = [config, classifier.preprocessing.to_json(), classifier.labels]
    digest = hashlib.blake2b(json.dumps(facts).encode(), digest_size=16)
    for name, tensor in classifier.model.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
