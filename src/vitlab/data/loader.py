"""Training and evaluation batches of any set of images."""

import torch
from jaxtyping import Float
from torch import Tensor

from vitlab.data.array_loader import ArrayLoader
from vitlab.data.augment_config import AugmentConfig
from vitlab.data.batch import Batch
from vitlab.data.evaluation import batches_for_evaluation
from vitlab.data.file_loader import FileLoader
from vitlab.data.images import ArraySet, ImageSet
from vitlab.preprocessing import Preprocessing

__all__ = ["ArrayLoader", "Batch", "FileLoader", "batches_for_evaluation", "open_loader"]


def open_loader(
    data: ImageSet,
    *,
    batch_size: int,
    seed: int,
    augment: AugmentConfig,
    preprocessing: Preprocessing,
    classes: int,
    device: torch.device | str = "cpu",
    workers: int = 1,
    max_broken: float = 0.2,
    weights: Float[Tensor, " N"] | None = None,
) -> ArrayLoader | FileLoader:
    """The loader for this kind of set; workers are of use to files only.

    `weights` tell how often each image is drawn; None: all of them once an epoch.
    """
    if isinstance(data, ArraySet):
        return ArrayLoader(
            data,
            batch_size=batch_size,
            seed=seed,
            augment=augment,
            mean=preprocessing.mean,
            std=preprocessing.std,
            classes=classes,
            device=device,
            size=preprocessing.size,
            interpolation=preprocessing.interpolation,
            weights=weights,
        )
    return FileLoader(
        data,
        batch_size=batch_size,
        seed=seed,
        augment=augment,
        preprocessing=preprocessing,
        classes=classes,
        device=device,
        workers=workers,
        max_broken=max_broken,
        weights=weights,
    )
