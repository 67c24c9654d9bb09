"""How many updates a budget buys: epochs, steps, or minutes on this machine."""

import copy
import time

from vitlab.train.config import TrainConfig
from vitlab.train.loop import Loader
from vitlab.train.loss import Loss, cross_entropy
from vitlab.train.state import TrainState, new_state
from vitlab.train.step import train_step

TRIAL_SECONDS = 10.0
MARGIN = 0.97
"""Of the minutes; the rest goes to checkpoints and the report."""
EVALUATION = 0.35
"""Time to evaluate an image, of the time to train with it: a third of the work, and no gradient."""


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
    return max(int((config.budget * 60 * MARGIN - TRIAL_SECONDS - looks) / update), 1)


def seconds_per_step(
    config: TrainConfig, state: TrainState, loader: Loader, loss_of: Loss
) -> float:
    """Median time of an update, measured on a copy that is thrown away."""
    trial = new_state(copy.deepcopy(state.model), config)
    trial.model.train()
    times: list[float] = []
    begin = time.monotonic()
    while len(times) < 3 or (time.monotonic() - begin < TRIAL_SECONDS and len(times) < 200):
        before = time.monotonic()
        train_step(trial, loader.batch(trial.step), config, lr_factor=0.0, loss_of=loss_of)
        times.append(time.monotonic() - before)
    measured = sorted(times[1:])
    return measured[len(measured) // 2]
