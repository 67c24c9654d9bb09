"""The engine that runs a PyTorch model, on a CPU or an accelerator."""

import threading
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vitlab.classify.batch_size import CACHE, DEVICE_MEMORY, fitting, share_cores, within_memory
from vitlab.data.images import normalise
from vitlab.images.preprocessing import Preprocessing
from vitlab.machine.cores import keep_freed_memory
from vitlab.models.cost import Footprint


class TorchEngine:
    """PyTorch: on a CPU, each core computes a small batch of its own."""

    def __init__(
        self,
        model: nn.Module,
        answer: Callable[[Tensor], Tensor],
        preprocessing: Preprocessing,
        *,
        footprint: Footprint,
        batch_size: int | None = None,
    ) -> None:
        keep_freed_memory()
        self._answer = answer
        self._preprocessing = preprocessing
        self._device = next((p.device for p in model.parameters()), torch.device("cpu"))
        self._threads = _SHARED.whole()
        on_cpu = self._device.type == "cpu"
        self.workers, self._each = share_cores(self._threads) if on_cpu else (1, self._threads)
        self.batch_size = batch_size or fitting(
            footprint.largest_output, CACHE if on_cpu else DEVICE_MEMORY
        )
        if on_cpu and self.batch_size > 1:  # fewer than one are none
            self.batch_size = within_memory(
                self.batch_size, peak_bytes=footprint.peak_bytes, workers=self.workers
            )

    def start_worker(self) -> None:
        """Share the cores out: one batch on one core wastes no time on meeting other threads."""
        _SHARED.take(self, self._threads, self._each)

    def predict(self, pixels: NDArray[np.uint8] | NDArray[np.float32]) -> NDArray[np.float32]:
        """Probabilities [B, classes] of pixels [B, C, H, W]: 8 bits, or normalised already."""
        images = torch.from_numpy(pixels).to(self._device)
        if images.dtype == torch.uint8:
            images = normalise(images, self._preprocessing.mean, self._preprocessing.std)
        return self._answer(images).float().cpu().numpy()

    def close(self) -> None:
        """Give threads that are started later the number that torch had before."""
        _SHARED.leave(self)


class _Shared:
    """How many threads torch has where no engine shares them out.

    A worker that takes its part changes the number for every thread that is started later. So an
    engine that is made in one of those is told the number from before, and the last engine to leave
    restores it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._engines: set[int] = set()
        self._whole = 0

    def whole(self) -> int:
        """Threads for all workers of an engine together."""
        with self._lock:
            return self._whole if self._engines else torch.get_num_threads()

    def take(self, engine: TorchEngine, whole: int, part: int) -> None:
        """A part of an engine's threads for the worker that calls."""
        with self._lock:
            if not self._engines:
                self._whole = whole
            self._engines.add(id(engine))
        torch.set_num_threads(part)

    def leave(self, engine: TorchEngine) -> None:
        """The workers of an engine are gone."""
        with self._lock:
            if id(engine) not in self._engines:
                return
            self._engines.remove(id(engine))
            if not self._engines:
                torch.set_num_threads(self._whole)


_SHARED = _Shared()
