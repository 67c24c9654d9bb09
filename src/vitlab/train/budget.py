"""How many updates a budget buys: epochs, steps, or minutes on this machine."""

import copy
import statistics
import time

from vitlab.train.config import TrainConfig
from vitlab.train.loop import Loader
from vitlab.train.loss import Loss, cross_entropy
from vitlab.train.small_images import share_of_pixels
from vitlab.train.state import TrainState, new_state
from vitlab.train.step import train_step

TRIAL_SECONDS, LONGEST_TRIAL = 10.0, 40.0
WARM_UP, FEWEST = 2, 5
"""Updates before the measured ones, while workers start and memory is found, and of the latter."""
MOST = 200
"""Measured updates."""
MARGIN = 0.97
"""Of the minutes; the rest goes to checkpoints and the report."""
EVALUATION = 0.35
"""Time to evaluate an image, of the time to train with it: a third of the work, and no gradient.
That of a step in which the head learns alone is about the same."""


def steps_for(
    config: TrainConfig,
    state: TrainState,
    loader: Loader,
    *,
    evaluated: int,
    loss_of: Loss = cross_entropy,
) -> int:
    """The number of updates; decided once, before the first of them.

    `evaluated` are the images looked at in each of the run's evaluations.
    """
    if config.budget_in == "steps":
        return max(round(config.budget), 1)
    if config.budget_in == "epochs":
        return max(round(config.budget * loader.steps_per_epoch), 1)
    update = seconds_per_step(config, state, loader, loss_of)
    # One more evaluation at the end tells the temperature and one more the result.
    looks = (config.evaluations + 2) * evaluated * EVALUATION * update / config.batch_size
    step = update * (1 - config.head_first * (1 - EVALUATION))  # on average
    if config.small_sizes:
        step *= share_of_pixels(config, min(loader.batch(0).images.shape[2:]))
    return max(int((config.budget * 60 * MARGIN - TRIAL_SECONDS - looks) / step), 1)


def seconds_per_step(
    config: TrainConfig, state: TrainState, loader: Loader, loss_of: Loss
) -> float:
    """Median time of an update, measured on a copy that is thrown away."""
    trial = new_state(copy.deepcopy(state.model), config)
    trial.model.train()
    times: list[float] = []
    for step in range(WARM_UP + MOST):
        before = time.monotonic()
        train_step(trial, loader.batch(step), config, lr_factor=0.0, loss_of=loss_of)
        if step >= WARM_UP:
            times.append(time.monotonic() - before)
        if sum(times) > (TRIAL_SECONDS if len(times) >= FEWEST else LONGEST_TRIAL):
            break
    return statistics.median(times)
