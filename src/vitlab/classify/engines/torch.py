"""The engine that computes a model with PyTorch, on a CPU or an accelerator; its features."""

import io
import threading
from collections.abc import Callable, Iterable
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float, Float32
from numpy.typing import NDArray
from torch import Tensor, nn

from vitlab.data.images import normalise
from vitlab.errors import InputError
from vitlab.images.pixels import Given, ImageSource, as_images, read_image
from vitlab.images.preprocessing import Preprocessing
from vitlab.machine.device import (
    CACHE,
    DEVICE_MEMORY,
    fitting,
    keep_freed_memory,
    share_cores,
    within_memory,
)
from vitlab.models.features import Readout
from vitlab.models.vit import logits_of

if TYPE_CHECKING:
    from vitlab.models.cost import Footprint


def compute(
    model: nn.Module, images: Float[Tensor, "B C H W"], activate: Callable[[Tensor], Tensor]
) -> Float[Tensor, "B classes"]:
    """Activated logits of preprocessed images: probabilities, or values of a regression."""
    if not (isinstance(images, Tensor) and images.ndim == 4 and images.is_floating_point()):
        raise TypeError(
            f"{type(images).__name__} is no preprocessed batch; valid: a float tensor "
            "[B, C, H, W] (`preprocessing.apply`); `predict` takes files and pixels"
        )
    with torch.inference_mode():
        return activate(logits_of(model)(images))


class TorchEngine:
    """PyTorch: on a CPU, each core computes a small batch of its own."""

    def __init__(
        self,
        model: nn.Module,
        answer: Callable[[Tensor], Tensor],
        preprocessing: Preprocessing,
        *,
        footprint: "Callable[[], Footprint]",
        batch_size: int | None = None,
    ) -> None:
        """`footprint` measures the memory of one image; called only if a batch may be large."""
        keep_freed_memory()
        self._answer = answer
        self._preprocessing = preprocessing
        self._device = next((p.device for p in model.parameters()), torch.device("cpu"))
        self._threads = _SHARED.whole()
        on_cpu = self._device.type == "cpu"
        self.workers, self._each = share_cores(self._threads) if on_cpu else (1, self._threads)
        self.batch_size = batch_size or fitting(
            footprint().largest_output, CACHE if on_cpu else DEVICE_MEMORY
        )
        if on_cpu and self.batch_size > 1:
            self.batch_size = within_memory(
                self.batch_size, peak_bytes=footprint().peak_bytes, workers=self.workers
            )

    def start_worker(self) -> None:
        """Take this worker's share of the cores: a batch on one core waits for no other thread."""
        _SHARED.take(self, self._threads, self._each)

    def predict(self, pixels: NDArray[np.uint8] | NDArray[np.float32]) -> NDArray[np.float32]:
        """Probabilities [B, classes] of pixels [B, C, H, W]: 8 bits, or normalised already."""
        images = torch.from_numpy(pixels).to(self._device)
        if images.dtype == torch.uint8:
            images = normalise(images, self._preprocessing.mean, self._preprocessing.std)
        return self._answer(images).float().cpu().numpy()

    def close(self) -> None:
        """Restore torch's number of threads for threads that are started later."""
        _SHARED.leave(self)


class _Shared:
    """Number of threads of torch while no engine shares them out.

    A worker that takes its part changes the number for every thread that is started later. An
    engine created in such a thread gets the number from before, and the last engine to leave
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
        """Set the threads of the calling worker to its part of an engine's threads."""
        with self._lock:
            if not self._engines:
                self._whole = whole
            self._engines.add(id(engine))
        torch.set_num_threads(part)

    def leave(self, engine: TorchEngine) -> None:
        """Note that the workers of an engine have ended."""
        with self._lock:
            if id(engine) not in self._engines:
                return
            self._engines.remove(id(engine))
            if not self._engines:
                torch.set_num_threads(self._whole)


_SHARED = _Shared()


def image_features(
    readout: Readout,
    preprocessing: Preprocessing,
    images: Given | Iterable[Given],
    *,
    batch_size: int,
) -> Float32[np.ndarray, "B ..."]:
    """Features of one image or of many, in their order; an unreadable image is an error."""
    if batch_size < 1:
        raise InputError(f"batch_size {batch_size}; valid: at least 1")
    sources = iter(as_images(images, preprocessing))
    device = next(readout.model.parameters()).device
    found = []
    while batch := list(islice(sources, batch_size)):
        pixels = np.stack([_prepared(source, preprocessing) for source in batch])
        with torch.inference_mode():
            found.append(readout(torch.from_numpy(pixels).to(device)).float().cpu())
    if not found:
        raise InputError("no image; valid: at least 1")
    return torch.cat(found).numpy()


def _prepared(source: ImageSource, preprocessing: Preprocessing) -> Float32[np.ndarray, "C H W"]:
    if isinstance(source, io.BytesIO):
        return preprocessing.normalise(read_image(source, preprocessing))
    return preprocessing.apply(source)
