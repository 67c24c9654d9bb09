"""Learning-rate schedules: pure functions from a step to a factor of the peak rate."""

import math

from vitlab.train.config import ScheduleConfig


def factor(config: ScheduleConfig, step: int, steps: int) -> float:
    """The factor for update number `step` (from 0) of `steps`."""
    warmup = config.warmup * steps
    if step < warmup:
        return (step + 1) / (warmup + 1)
    if config.kind in ("cosine", "linear"):
        # The last update still moves: a rate of exactly zero would waste it.
        progress = (step - warmup) / max(steps - warmup, 1)
        return 0.5 * (1 + math.cos(math.pi * progress)) if config.kind == "cosine" else 1 - progress
    held = 1.0 if config.kind == "constant" else math.sqrt((warmup + 1) / (step + 1))
    cooldown = config.cooldown * steps
    return held * min(1.0, (steps - step) / (cooldown + 1))
