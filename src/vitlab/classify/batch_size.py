"""How many images at once suit a model and a machine; imports no torch."""

from vitlab.errors import VitlabError
from vitlab.machine.cores import free_bytes

CACHE = 5 * 2**20
"""Bytes that the largest intermediate result of a batch may take on a CPU: what is written by one
layer is still in the cache when the next one reads it."""
DEVICE_MEMORY = 256 * 2**20
"""The same on an accelerator, which wants large batches."""
MOST = 256
"""Images of a batch: more of even the smallest model gain nothing."""
SHARE = 0.8
"""Part of the free memory that a model may fill."""


def fitting(output_bytes: int, budget: int = CACHE) -> int:
    """Images until the largest intermediate result fills the budget, given its size for one."""
    return max(1, min(MOST, budget // output_bytes))


def check_weights(name: str, weight_bytes: int) -> None:
    """Refuse a model whose weights do not fit, before the machine begins to swap."""
    free = free_bytes()
    if free is not None and weight_bytes > SHARE * free:
        raise NotEnoughMemory(
            f"{name} needs {_gigabytes(weight_bytes)} of memory for weights, and "
            f"{_gigabytes(free)} are free; valid: a smaller model, or more memory"
        )


def within_memory(batch_size: int, *, peak_bytes: int, workers: int) -> int:
    """As many images of a batch as memory allows, while so many batches are computed at once."""
    free = free_bytes()
    if free is None:
        return batch_size
    return max(1, min(batch_size, int(SHARE * free) // max(1, peak_bytes * workers)))


class NotEnoughMemory(VitlabError):
    """A model that is too large for this machine, now."""


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:.3g} GB"


# How cores are shared out among threads that compute batches of their own; imports no torch.

MOST_WORKERS = 8
"""Threads that share one interpreter; beyond this, each of them computes with several cores."""
FEWEST_WORKERS = 5
"""Of more cores than that: a batch that many cores share waits for the slowest of them."""


def share_cores(cores: int) -> tuple[int, int]:
    """Workers, and threads of each, that leave the fewest cores idle; of equals, more workers.

    Up to `MOST_WORKERS` cores none is idle. Beyond, the numbers from 5 to 8 leave so few
    remainders that at most one core in nine is.
    """
    if cores <= MOST_WORKERS:
        return cores, 1
    numbers = range(FEWEST_WORKERS, MOST_WORKERS + 1)
    workers = max(numbers, key=lambda number: (cores - cores % number, number))
    return workers, cores // workers
