"""The images that a model is looked at with: some of a dataset, drawn by a seed."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from vitlab.data.datasets import open_data
from vitlab.data.images import ArraySet, one_of
from vitlab.data.loader import batches_for_evaluation
from vitlab.data.pointed import Listed, list_images
from vitlab.data.random import generator
from vitlab.errors import DataError, InputError
from vitlab.preprocessing import MODES, Preprocessing
from vitlab.registry import DATASETS


@dataclass(kw_only=True)
class Drawn:
    """Images to go through; those that could be read are known once they have gone."""

    parts: Sequence[Listed]
    names: list[str] = field(default_factory=list)
    labels: list[str] = field(default_factory=list)
    broken: dict[Path, str] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """Readable or not."""
        return sum(map(len, self.parts))

    def batches(
        self, preprocessing: Preprocessing, *, batch_size: int, device: torch.device
    ) -> Iterator[Float[Tensor, "B C H W"]]:
        """Prepared images; their names and labels are added as they come."""
        for part in self.parts:
            _check_channels(part, preprocessing.channels)
            for images, _, index in batches_for_evaluation(
                part.images,
                batch_size=batch_size,
                preprocessing=preprocessing,
                device=device,
                broken=self.broken,
            ):
                self.names += [part.names[number] for number in index.tolist()]
                self.labels += [part.labels[number] for number in index.tolist()]
                yield images
        if not self.names:
            raise DataError(f"none of {self.total} images can be read; {one_of(self.broken)}")


def draw_images(
    data: str | os.PathLike[str], count: int, *, seed: int, download: bool = False
) -> Drawn:
    """`count` of the images, or all where there are fewer; of a dataset by name, test images."""
    if count < 1:
        raise InputError(f"images {count}; valid: at least 1")
    parts = list_images([data], split=_split(data, download), download=download)
    total = sum(map(len, parts))
    numbers = torch.randperm(total, generator=generator(seed, "figures"))[:count].sort().values
    drawn, start = [], 0
    for part in parts:
        inside = numbers[(numbers >= start) & (numbers < start + len(part))] - start
        start += len(part)
        drawn.append(
            Listed(
                images=part.images.subset(inside),
                names=[part.names[number] for number in inside.tolist()],
                labels=[part.labels[number] for number in inside.tolist()],
            )
        )
    return Drawn(parts=drawn)


def _split(data: str | os.PathLike[str], download: bool) -> str | None:
    """Of a dataset by name the test images, which nothing was learned from, if there are any."""
    if os.fspath(data) not in DATASETS:
        return None
    return "all" if open_data(data, download=download).open_test is None else "test"


def _check_channels(part: Listed, channels: int) -> None:
    if not isinstance(part.images, ArraySet) or channels in MODES:
        return
    found = part.images.images.shape[1]
    if found != channels:
        raise DataError(
            f"images of {found} channels for a model of {channels}; valid: other data (--data), or "
            f"figures that need no images (--only filters,positions)"
        )
