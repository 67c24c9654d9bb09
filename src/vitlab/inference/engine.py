"""What computes: an engine takes 8-bit pictures of the model's size and gives probabilities.

Imports no torch: an engine may do without.
"""

from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray


@runtime_checkable
class Engine(Protocol):
    """A model that is ready to compute, in whatever runtime."""

    batch_size: int
    """Images at once that suit the model and the machine."""
    workers: int
    """Threads that may call `predict` at once, each with a batch of its own."""

    def start_worker(self) -> None:
        """Called once in each such thread, before its first `predict`."""

    def predict(self, pixels: NDArray[np.uint8] | NDArray[np.float32]) -> NDArray[np.float32]:
        """Probabilities [B, classes] of pixels [B, C, H, W]: 8 bits, or normalised already."""

    def close(self) -> None:
        """Called when no worker will compute any more."""
