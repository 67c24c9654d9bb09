"""The engine that runs a PyTorch model, on a CPU or an accelerator."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vitlab.data.batch import normalise
from vitlab.models.flops import image_shape
from vitlab.preprocessing import Preprocessing
from vitlab.runtime import keep_freed_memory

CACHE = 5 * 2**20
"""Bytes that the largest intermediate result of a batch may take on a CPU: what is written by one
layer is still in the cache when the next one reads it."""
DEVICE_MEMORY = 256 * 2**20
"""The same on an accelerator, which wants large batches."""
MOST = 256
"""Images of a batch: more of even the smallest model gain nothing."""
MOST_WORKERS = 8
"""Threads that share one interpreter; beyond this, each of them computes with several cores."""


class TorchEngine:
    """PyTorch: on a CPU, each core computes a small batch of its own."""

    def __init__(
        self,
        model: nn.Module,
        answer: Callable[[Tensor], Tensor],
        preprocessing: Preprocessing,
        *,
        batch_size: int | None = None,
    ) -> None:
        keep_freed_memory()
        self._answer = answer
        self._preprocessing = preprocessing
        self._device = next((p.device for p in model.parameters()), torch.device("cpu"))
        self._threads = torch.get_num_threads()
        on_cpu = self._device.type == "cpu"
        self.workers = min(self._threads, MOST_WORKERS) if on_cpu else 1
        self.batch_size = batch_size or fitting_batch(model, CACHE if on_cpu else DEVICE_MEMORY)

    def start_worker(self) -> None:
        """Share the cores out: one batch on one core wastes no time on meeting other threads."""
        torch.set_num_threads(max(1, self._threads // self.workers))

    def predict(self, pixels: NDArray[np.uint8] | NDArray[np.float32]) -> NDArray[np.float32]:
        """Probabilities [B, classes] of pixels [B, C, H, W]: 8 bits, or normalised already."""
        images = torch.from_numpy(pixels).to(self._device)
        if images.dtype == torch.uint8:
            images = normalise(images, self._preprocessing.mean, self._preprocessing.std)
        return self._answer(images).float().cpu().numpy()

    def close(self) -> None:
        """Give threads that are started later the number that torch had before."""
        torch.set_num_threads(self._threads)


def fitting_batch(model: nn.Module, budget: int) -> int:
    """How many images it takes until the model's largest intermediate result fills the budget."""
    return max(1, min(MOST, budget // _largest_output(model)))


def _largest_output(model: nn.Module) -> int:
    """Bytes of the largest tensor that any part of the model returns for one image."""
    parameter = next(model.parameters())
    image = torch.zeros(1, *image_shape(model), dtype=parameter.dtype, device=parameter.device)
    sizes = [image.nbytes]

    def note(module: nn.Module, inputs: Any, output: Any) -> None:
        if isinstance(output, Tensor):
            sizes.append(output.nbytes)

    hooks = [module.register_forward_hook(note) for module in model.modules()]
    try:
        with torch.inference_mode():
            model(image)
    finally:
        for hook in hooks:
            hook.remove()
    return max(sizes)
