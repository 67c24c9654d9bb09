"""The loss of a classifier, for class numbers and for mixed targets alike."""

import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor


def cross_entropy(
    logits: Float[Tensor, "B classes"],
    targets: Int[Tensor, " B"] | Float[Tensor, "B classes"],
    label_smoothing: float,
) -> Float[Tensor, ""]:
    """Mean cross-entropy in float32; smoothing moves that share evenly onto all classes."""
    return F.cross_entropy(logits.float(), targets, label_smoothing=label_smoothing)
