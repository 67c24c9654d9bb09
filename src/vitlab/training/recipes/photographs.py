"""Image size of the default recipe for a folder of photographs, by their size and the budget."""

import statistics
from collections.abc import Iterator, Mapping
from typing import Any

from vitlab.data.images import FileSet
from vitlab.images.open import is_array, open_image
from vitlab.images.statistics import spread
from vitlab.machine.device import cores
from vitlab.models.cost import cost
from vitlab.models.variants import configure
from vitlab.training.config import TrainConfig

SIZES = (128, 96, 64, 48)
"""Sides that are tried for photographs, from the largest; otherwise the model's own size."""
LOOKED_AT = 25
"""Files whose sizes are read."""
AFFORDABLE = 2e14
"""FLOPs of a training without a budget in minutes: about half an hour of two cores."""
CORE_SPEED, EPOCHS = 5e10, 10
"""FLOPs of a core in a second, a cautious estimate, and epochs that should fit into the minutes."""


def photograph_size(
    images: Any, config: TrainConfig, changes: Mapping[str, Any]
) -> tuple[int | None, str | None]:
    """Side that the photographs are resized to, and a note; None for a model's own size.

    A size or a model that was chosen stays; so do images as small as the model's own.
    """
    if not isinstance(images, FileSet) or changes.keys() & {"model", "model.image_size"}:
        return None, None
    sides = list(_sides(images))
    if not sides or (median := statistics.median(sides)) < SIZES[-1]:
        return None, None
    allowed = _allowed(config)
    size = next((s for s in SIZES if s <= median and _flops(s, len(images), config) <= allowed), 32)
    return size, (
        f"photographs with a shorter side of {median:g} pixels (median) are resized to {size} x "
        f"{size}, the largest size that the budget allows; --set model.image_size=N changes it. "
        f"Published weights need fewer images: vitlab finetune --from vit_ti16.deit --download"
    )


def _sides(images: FileSet) -> Iterator[int]:
    """Shorter sides of some of the files, from their headers."""
    for path in spread(images.paths, LOOKED_AT):
        if is_array(path):
            continue
        try:
            with open_image(path) as image:
                yield min(image.size)
        except Exception:  # files that cannot be read are reported when they are decoded
            continue


def _flops(side: int, images: int, config: TrainConfig) -> float:
    """FLOPs of the training at this size."""
    forward = cost(configure(config.model, image_size=side)).flops
    if config.budget_in == "steps":
        seen = config.budget * config.batch_size
    else:
        seen = images * (EPOCHS if config.budget_in == "minutes" else config.budget)
    return 3 * forward * seen


def _allowed(config: TrainConfig) -> float:
    if config.budget_in != "minutes":
        return AFFORDABLE
    return config.budget * 60 * CORE_SPEED * cores()
