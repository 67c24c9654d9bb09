"""What makes an answer of a model's output, by task; imports no torch."""

import numpy as np
from numpy.typing import NDArray

from vitlab.kinds import Task

Numbers = NDArray[np.float32]


def answer(logits: Numbers, task: Task) -> Numbers:
    """Probabilities of classes or of labels, or the values themselves."""
    if task == "single-label":
        shifted = np.exp(logits - logits.max(axis=-1, keepdims=True))
        return np.asarray(shifted / shifted.sum(axis=-1, keepdims=True), dtype=np.float32)
    if task == "multi-label":
        # Each half where exp cannot overflow.
        small = np.exp(-np.abs(logits))
        return np.asarray(np.where(logits >= 0, 1, small) / (1 + small), dtype=np.float32)
    return logits
