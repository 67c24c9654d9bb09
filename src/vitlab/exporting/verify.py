"""Verify an exported model against the original: on photographs and on noise."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import UInt8
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn

from vitlab.data.datasets import open_data
from vitlab.data.images import ArraySet, normalise
from vitlab.errors import Disagrees
from vitlab.images.preprocessing import Preprocessing
from vitlab.models.cost import image_shape

Run = Callable[[NDArray[np.uint8] | NDArray[np.float32]], NDArray[np.float32]]
"""Function from images, as the exported model takes them, to logits."""
BATCHES = (1, 3)
"""Batch sizes that are tested, if any size is possible."""
PHOTOGRAPHS = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """Difference between two models."""

    largest: float
    """Largest difference between logits."""
    scale: float
    """Largest magnitude of the logits."""
    tolerance: float
    """Allowed difference, relative to the larger of `scale` and one."""
    images: int

    @property
    def allowed(self) -> float:
        """Largest allowed difference."""
        return self.tolerance * max(1.0, self.scale)

    def check(self) -> None:
        """Raise if the models differ by more than allowed."""
        if not self.largest <= self.allowed:  # also for NaN
            raise Disagrees(
                f"the exported model differs from the model by {self.largest:.3g} on logits up to "
                f"{self.scale:.3g}; allowed: {self.allowed:.3g}; nothing was written"
            )


def compare(
    model: nn.Module,
    run: Run,
    *,
    preprocessing: Preprocessing,
    inside: bool,
    batches: Sequence[int],
    tolerance: float,
) -> Comparison:
    """Compare the model, computed by torch, with the results of `run`."""
    shape = image_shape(model)
    largest = scale = 0.0
    count = 0
    for pixels in (_photographs(shape), _noise(shape)):
        images = normalise(pixels, preprocessing.mean, preprocessing.std)
        given = pixels if inside else images
        with torch.inference_mode():
            expected = model(images).float()
        for number in batches:
            for first in range(0, len(images) - number + 1, number):
                part = slice(first, first + number)
                found = torch.from_numpy(run(given[part].numpy()))
                difference = (found - expected[part]).abs().max()
                largest = float(torch.tensor(largest).maximum(difference))  # keeps a NaN
                scale = max(scale, float(expected[part].abs().max()))
                count += number
    return Comparison(largest=largest, scale=scale, tolerance=tolerance, images=count)


def _photographs(shape: tuple[int, int, int]) -> UInt8[Tensor, "B C H W"]:
    """Some of the package's photographs, in the model's size; further channels repeat RGB."""
    source = open_data("sample").open_train()
    assert isinstance(source, ArraySet)
    channels, height, width = shape
    chosen = source.images[:: len(source.images) // PHOTOGRAPHS][:PHOTOGRAPHS]
    sized = [
        np.asarray(
            Image.fromarray(photo.permute(1, 2, 0).numpy()).resize((width, height)), dtype=np.uint8
        )
        for photo in chosen
    ]
    pixels = torch.from_numpy(np.stack(sized)).permute(0, 3, 1, 2)
    return pixels[:, [number % 3 for number in range(channels)]].contiguous()


def _noise(shape: tuple[int, int, int]) -> UInt8[Tensor, "B C H W"]:
    draw = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (PHOTOGRAPHS, *shape), generator=draw, dtype=torch.uint8)
