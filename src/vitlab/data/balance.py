"""How much each class or image must weigh for rare classes to count as much as frequent ones."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vitlab.data.strata import rarest_label
from vitlab.errors import ConfigError


def class_weights(labels: Int[Tensor, " N"], classes: int) -> Float[Tensor, " classes"]:
    """Inverse to the number of images; an average image weighs 1, a class without images 0."""
    counts = torch.bincount(labels, minlength=classes).double()
    present = int((counts > 0).sum())
    return torch.where(counts > 0, len(labels) / (present * counts), 0.0).float()


def label_weights(labels: Bool[Tensor, "N classes"]) -> Float[Tensor, "2 classes"]:
    """Of images without each label and with it, so that both halves weigh the same; 1 on average.

    A label that all images have, or none, has nothing to be balanced.
    """
    having = labels.double().sum(dim=0)
    counts = torch.stack([len(labels) - having, having])
    return torch.where(counts.min(dim=0).values > 0, len(labels) / (2 * counts), 1.0).float()


def image_weights(labels: Tensor) -> Float[Tensor, " N"]:
    """How often to draw each image: all classes alike; of several labels, by the rarest."""
    if labels.is_floating_point():
        raise ConfigError("balance is for classes; these images have values: valid: balance=none")
    kinds = labels if labels.ndim == 1 else torch.from_numpy(rarest_label(labels.numpy()))
    return class_weights(kinds, int(kinds.max()) + 1)[kinds]
