"""What updates cost, counted as they are made: FLOPs at 2 per multiply-add, as `models.flops`."""

from collections.abc import Sequence

from torch import nn

from vitlab.models.summary import summary
from vitlab.training.config import TrainConfig
from vitlab.training.optim import optimizer_flops
from vitlab.training.trainable import passes


class Meter:
    """FLOPs of an update: its passes through the model, Newton-Schulz, and a teacher's passes.

    Looks at held-out images and trials of speed are not part of training and are not counted.
    """

    def __init__(self, config: TrainConfig, *, teacher_flops: int = 0) -> None:
        """`teacher_flops` are those of a teacher for one image."""
        self._config = config
        self._teacher = teacher_flops
        self._known: dict[tuple[int, ...], tuple[int, int]] = {}

    def flops(self, model: nn.Module, shape: Sequence[int], *, head_alone: bool) -> int:
        """Of an update that was just made with images of this shape `(B, C, H, W)`."""
        batch, *image = shape
        if (key := (*image, int(head_alone))) not in self._known:
            self._known[key] = self._count(model, image, head_alone)
        each, once = self._known[key]
        return batch * each + once

    def _count(self, model: nn.Module, image: Sequence[int], head_alone: bool) -> tuple[int, int]:
        """For each image of an update, and once for the update."""
        config = self._config
        found = summary(model, (1, *image), depth=1)
        each = passes(config, head_alone=head_alone) * found.flops
        if config.recompute_activations and not head_alone:
            each += (2 if config.optimizer.sam else 1) * (found.encoder_flops or 0)
        return each + self._teacher, optimizer_flops(model, config.optimizer)
