"""How cores are shared out among threads that compute batches of their own; imports no torch."""

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
