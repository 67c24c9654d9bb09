"""Distillation (arXiv:1503.02531): a share of each target is a teacher's prediction."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from vitlab.data.loader import Batch
from vitlab.models.cost import count_flops
from vitlab.training.loop import Loader

Predict = Callable[[Float[Tensor, "B C H W"]], Float[Tensor, "B classes"]]
"""Probabilities of a teacher, for images as the student sees them."""


@dataclass(kw_only=True)
class DistillationLoader:
    """Batches of another loader, with targets mixed with a teacher's probabilities.

    Cross-entropy with the mixture is the mixture of both cross-entropies: the loss needs no change.
    """

    loader: Loader
    teacher: Predict
    share: float
    """Share of the teacher's probabilities in a target."""
    classes: int
    flops: int = 0
    """FLOPs of the teacher for one image."""
    broken: dict[Path, str] = field(init=False)
    """Files that could not be read."""

    def __post_init__(self) -> None:
        self.broken = self.loader.broken

    @property
    def steps_per_epoch(self) -> float:
        """Number of batches that contain every image once."""
        return self.loader.steps_per_epoch

    def batch(self, step: int) -> Batch:
        """Batch of this step, with the teacher's probabilities in its targets."""
        images, targets, index = self.loader.batch(step)
        if not targets.is_floating_point():
            targets = F.one_hot(targets, self.classes).float()
        with torch.no_grad():
            taught = self.teacher(images).to(targets)
        return Batch(images, targets.lerp(taught, self.share), index)

    def close(self) -> None:
        """Stop background processes."""
        self.loader.close()


@dataclass(frozen=True, kw_only=True)
class Teacher:
    """A trained model that predicts images prepared for another model."""

    model: nn.Module
    size: tuple[int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    prepared_with: tuple[tuple[float, ...], tuple[float, ...]]
    """Mean and deviation that the images were normalised with."""
    classes: Tensor
    """For each class of the student, the teacher's."""
    temperature: float = 1.0

    @property
    def flops(self) -> int:
        """FLOPs for one image."""
        return count_flops(self.model, self.size, len(self.mean))

    def __call__(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B classes"]:
        mean, std = (_per_channel(values, images) for values in self.prepared_with)
        own_mean, own_std = _per_channel(self.mean, images), _per_channel(self.std, images)
        x = (images * std + mean - own_mean) / own_std
        if tuple(x.shape[-2:]) != self.size:
            x = F.interpolate(x, self.size, mode="bicubic", antialias=True)
        logits = self.model(x)[:, self.classes.to(x.device)]
        return (logits / self.temperature).softmax(dim=-1)


def _per_channel(values: tuple[float, ...], images: Tensor) -> Tensor:
    return images.new_tensor(values)[:, None, None]
