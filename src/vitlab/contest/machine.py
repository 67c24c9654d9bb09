"""The machine as a contestant: what it can do at most, and whether it had other work."""

import statistics
from collections.abc import Callable, Sequence

from vitlab.contest.referee import Contestant, Round

SGEMM_SIDE = 1536
MACHINE = "sgemm"
BUSY = 1.3
"""Slowest against fastest turn of the same matrix product on a machine that has other work."""
RESTLESS = 0.05
"""CPU seconds between two turns; waking up and answering takes a fifth of it."""


def machine() -> Contestant:
    """A large product of float32 matrices: the speed that nothing here can pass."""
    return Contestant(name=MACHINE, factory="vitlab.contest.machine:sgemm")


def sgemm() -> Callable[[], float]:
    """The product, to be timed."""
    import torch

    left, right = torch.randn(2, SGEMM_SIDE, SGEMM_SIDE)

    def multiply() -> float:
        return float((left @ right)[0, 0])

    return multiply


def disturbances(rounds: Sequence[Round]) -> list[str]:
    """What makes the figures doubtful: a machine with other work, contestants that do not sleep."""
    found = []
    limits = [turns[MACHINE].seconds for turns in rounds]
    if max(limits) > BUSY * min(limits):
        slower = max(limits) / min(limits)
        found.append(f"busy machine, the same product took {slower:.1f}x longer")
    awake = max(turn.asleep for turns in rounds for turn in turns.values())
    if awake > RESTLESS:
        found.append(f"a sleeping contestant used {awake:.2f} s of CPU")
    return found


def share_of_limit(rounds: Sequence[Round], name: str, flops: int) -> float:
    """Speed in FLOP/s against that of a large matrix product in the same round."""
    limit = 2 * SGEMM_SIDE**3
    return statistics.median(
        flops / turns[name].seconds / (limit / turns[MACHINE].seconds) for turns in rounds
    )
